"""A worker, on a Spark executor: the agent that supervises, and the trainer process that runs cells.

Commands of the kernel come in; the events of runs, what cells show, and the names they leave go out.
"""
