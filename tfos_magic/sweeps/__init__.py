"""Searches for hyper-parameters: trials on whichever workers are free, chosen by Optuna, which is in the kernel alone.

The study is asked and told (``Study.ask``, ``Study.tell``); the workers' cells ask by ``tfos.suggest_float`` and its
like, and their epochs are reported as they end. Importing this does not load Optuna.
"""
