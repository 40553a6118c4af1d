"""``cluster.netbench()``: what the workers measured of the network between them, brought together.

Sizes and a model come in; a table of bandwidth and latency, and advice, go out.
"""
