"""Parameter servers: processes that hold the weights, each its share, and run the user's optimizer on them."""
