"""Files of one format as a row of units, each of which a process can read by itself.

Paths come in; the columns and counts of the files, and record batches of their units, go out.
"""
