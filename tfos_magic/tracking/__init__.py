"""Runs in a tracking server, as MLflow: what is known of a run comes in, beside the views, and parameters, metrics and
artifacts go out. Workers need nothing for it.
"""
