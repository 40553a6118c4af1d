"""Datasets and their batches: how pipelines that a cell makes run, batches without rows, and how long steps wait.

Datasets come in; the same datasets go out, whose batches all ranks end with together.
"""
