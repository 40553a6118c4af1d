"""Which rows of a dataset are a rank's: marks on datasets that are shares already, and the cut of all others."""
