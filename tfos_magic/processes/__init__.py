"""Processes of a worker's host: children that end with their parent, what they leave in temporary folders, orphans."""
