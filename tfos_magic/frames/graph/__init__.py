"""Traced functions: the graphs of each operation, how they are run, and the random numbers that they draw."""
