"""``%tfos netbench``: its line, and what it shows."""
