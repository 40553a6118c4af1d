"""What stands in the kernel's place on an executor, where executors do not reach the kernel.

Messages of agents come in over sockets and go out to the kernel's polls, and the other way.
"""
