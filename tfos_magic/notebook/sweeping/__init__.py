"""``%%tfos_sweep``: its options, how a cell becomes a sweep, and how a sweep is shown."""
