"""Datasets and their batches: how pipelines that a cell makes run, batches without rows, and how long steps wait."""
