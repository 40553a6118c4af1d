"""Where training was, taken while it goes on and put back when it goes on later: the trainer's side of checkpoints."""
