"""What would give wrong numbers without a word, found in the data before it does.

A function or model and some rows come in; an error that says what to write instead goes out, or nothing.
"""
