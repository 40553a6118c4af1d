"""Traced functions: the graphs of each operation, how they are run, and the random numbers that they draw.

A Python function and the specs of its columns come in; a compiled function of NumPy arrays goes out.
"""
