"""Before the first step of a model, whether the workers' parts of a batch can make up the step of one process.

A model and some rows come in; the law of each gradient goes out (a mean over rows, or a sum), or a refusal of what
compares rows with each other. No program says which it is, but it shows: the step is tried on some rows and on two
parts of them, and what it computed is compared.
"""
