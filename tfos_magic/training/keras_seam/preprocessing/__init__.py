"""``adapt()`` of Keras's preprocessing layers on rows that ranks share.

Each rank's rows come in; the state that one process would have learned goes out on all.
"""
