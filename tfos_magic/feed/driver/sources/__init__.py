"""What a DataFrame reads, as far as it can be told without reading it.

A DataFrame comes in; its files, and what it depends on, go out.
"""
