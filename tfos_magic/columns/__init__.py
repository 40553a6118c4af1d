"""Schemas, and the way between Spark columns, Arrow arrays and tensors."""
