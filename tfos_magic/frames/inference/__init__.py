"""Inference: models, their files, and which columns become which of their inputs."""
