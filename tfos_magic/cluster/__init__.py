"""The driver side: launch, control, feed job, TensorBoard and the cluster's life cycle."""
