"""Searches for hyper-parameters: trials on whichever workers are free, chosen by Optuna, which is in the kernel alone.

A cell and a search come in; trials, the study and the names of the best trial go out. Cells ask by
``tfos.suggest_float`` and its like, and their epochs are reported to the study as they end.
"""
