"""How ranks keep one model: by summing gradients in each step, or by steps of their own and sums now and then.

A rank's gradients and weights come in; those that all ranks go on with go out.
"""
