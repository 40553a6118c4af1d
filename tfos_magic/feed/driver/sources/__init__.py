"""What a DataFrame reads, as far as it can be told without reading it."""
