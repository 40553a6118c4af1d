"""Spark Connect sessions, and whether their server answers."""
