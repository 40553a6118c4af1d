"""``adapt()`` of Keras's preprocessing layers on rows that ranks share."""
