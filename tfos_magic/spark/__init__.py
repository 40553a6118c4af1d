"""What is asked of Spark: the session, its slots, packages and modules sent to executors, and whether it still lives.

Nothing above this room speaks to a ``SparkContext``; classic and Connect sessions differ here alone.
"""
