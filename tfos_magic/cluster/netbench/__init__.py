"""``cluster.netbench()``: what the workers measured of the network between them, brought together."""
