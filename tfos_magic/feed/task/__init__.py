"""In a Spark task: a partition is cut into each worker's rows, which are sent to the worker's agent.

A partition's rows come in; what was sent, and what was refused, goes out as the task's result.
"""
