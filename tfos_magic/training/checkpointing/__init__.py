"""Where training was, taken while it goes on and put back when it goes on later: the trainer's side of checkpoints.

A model, its callbacks and its data come in; parts of a checkpoint go out, and back in after a restart.
"""
