"""What training tells of itself: metrics and logs over all ranks, and how far a rank is.

States of metrics and logs of steps come in; history and progress of the run go out.
"""
