"""One process's view of the disk: rank 0 writes where the notebook does, other ranks each on a copy of their own.

Paths that a cell opens, lists and renames come in; those of the notebook's folder, or of the rank's copy, go out.
"""

SHARED_VARIABLE = "TFOS_SHARED"
"""In a trainer's environment, the folder that it has in common with the others of its generation and host."""
