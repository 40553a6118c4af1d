"""Processes of a worker's host: children that end with their parent, what they leave in temporary folders, orphans.

What to run comes in; a process that somebody reaps, and how it ended, goes out.
"""
