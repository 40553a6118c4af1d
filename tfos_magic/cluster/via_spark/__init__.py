"""Messages by way of Spark, where executors do not reach the kernel.

The same messages as over a socket come in and go out, in small jobs.
"""
