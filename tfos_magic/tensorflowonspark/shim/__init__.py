"""The module by the name of the original package, which executors get as a file."""
