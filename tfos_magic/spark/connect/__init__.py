"""Spark Connect sessions, and whether their server answers.

A session comes in; an error in time goes out where its server is gone.
"""
