"""On a worker's host: what takes rows in over Arrow Flight and keeps them, in memory and on disk, until they are read.

Arrow batches with their row numbers come in from tasks; blocks of rows go out to the trainer beside it.
"""
