"""Training loops that a cell writes itself: gradients of batches of which each rank has a share.

A loop's tapes and draws come in; gradients and numbers of the whole batch go out.
"""
