"""The cluster, seen from the kernel: :class:`TFCluster`, the agents it launches, who takes part, and its end.

A Spark session and sizes come in, runs of cells go out to the workers. What a run is, is in ``runs``.
"""
