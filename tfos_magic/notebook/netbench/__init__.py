"""``%tfos netbench``: its line, and what it shows.

Options come in; a table and a picture go out.
"""
