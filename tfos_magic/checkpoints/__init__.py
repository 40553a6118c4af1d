"""Checkpoints: their format, and where they are kept.

The parts that rank 0 sends come in; what goes out is the last checkpoint of each ``fit``, whole or not at all.
"""
