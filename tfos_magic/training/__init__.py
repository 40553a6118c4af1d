"""Inside a trainer: what makes plain Keras distributed.

A cell's model, its data and what the run was asked come in; steps that are those of one process go out, and what the
notebook hears of them.
"""
