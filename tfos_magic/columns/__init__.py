"""Columns: from a Spark type to an Arrow array to a tensor, for feeds and frames.

A schema comes in, and a plan of columns goes out, or a refusal that says what to write instead.
"""
