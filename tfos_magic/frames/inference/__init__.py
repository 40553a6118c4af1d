"""Inference: models, their files, and which columns become which of their inputs.

A model, or where it lies, and a DataFrame come in; the DataFrame with columns of predictions goes out.
"""
