"""Losses and metrics of a whole batch: what they are, and the rows of all workers that they are computed of.

In come labels and outputs of this rank's rows, out goes the number of the global batch with the gradient by own rows.
"""
