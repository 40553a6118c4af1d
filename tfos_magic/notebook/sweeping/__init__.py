"""``%%tfos_sweep``: its options, how a cell becomes a sweep, and how a sweep is shown.

Options and the text of a cell come in; a sweep, its panel and its card go out.
"""
