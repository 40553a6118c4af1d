"""What stands in the kernel's place on an executor, where executors do not reach the kernel."""
