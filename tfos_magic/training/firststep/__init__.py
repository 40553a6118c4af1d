"""Before the first step of a model, whether the workers' parts of a batch can make up the step of one process.

A step is distributed by its law: a gradient that is a mean over rows is the mean of the workers' by their rows, one
that is a sum is their sum, and one that compares rows with each other is neither. Which it is cannot be read off a
program, but it shows: the step is tried on some rows and on two parts of them, and what it computed is compared.
"""
