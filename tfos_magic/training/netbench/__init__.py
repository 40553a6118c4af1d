"""What the network between workers gives: measured by the workers, in sums as training makes them.

Sizes come in; seconds of each sum and latencies go out.
"""
