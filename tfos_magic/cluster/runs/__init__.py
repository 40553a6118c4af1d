"""Runs of cells on a cluster, seen from the kernel: what is asked of workers, the state that views draw, the outcome.

In come a cell and its options and the workers' events; out go what the cell left, or one error.
"""
