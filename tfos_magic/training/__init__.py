"""Inside a trainer: what makes plain Keras distributed."""
