"""TensorBoard beside the kernel: its process, the folders it shows, and what is written there.

Event files of rank 0 and a run's metrics come in; an address that a browser can open goes out.
"""
