"""Everything that changes Keras or TensorFlow while a run is under way, and puts it back after it.

A :class:`~tfos_magic.training.rank_session.Session` comes in; out goes a Keras whose loops, losses, metrics and layers
compute what one process would.
"""
