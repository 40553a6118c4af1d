"""Which rows of a dataset are a rank's: marks on datasets that are shares already, and the cut of all others.

Data as the cell gave them come in; this rank's rows of each global batch go out.
"""
