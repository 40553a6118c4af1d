"""What is asked of Spark: the session, its slots, packages and modules sent to executors, and whether it still lives.

A session comes in, classic or Connect; what is known of it, and what its errors mean, goes out. What only one of the
two kinds of session has is asked where it is needed, after :func:`~tfos_magic.spark.session.is_connect`.
"""
