"""What the network between workers gives: measured by the workers, in sums as training makes them."""
