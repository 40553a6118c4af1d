"""Messages by way of Spark, where executors do not reach the kernel."""
