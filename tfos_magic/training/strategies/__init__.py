"""How ranks keep one model: by summing gradients in each step, or by steps of their own and sums now and then."""
