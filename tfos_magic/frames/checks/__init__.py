"""What would give wrong numbers without a word, found in the data before it does."""
