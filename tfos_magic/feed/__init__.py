"""The way of a row: a Spark partition comes in, the ``tf.data`` of the worker it belongs to goes out.

There is a folder for each process: ``driver`` starts the jobs that feed, ``task`` sends a partition's rows in them,
``agent`` keeps what arrives on the worker's host, ``trainer`` reads it. Which row goes to which worker is said once, in
``row_assignment``.
"""
