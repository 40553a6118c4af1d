"""Training loops that a cell writes itself: gradients of batches of which each rank has a share."""
