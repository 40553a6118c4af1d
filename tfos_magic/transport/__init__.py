"""How messages travel between kernel, agents and trainers: authenticated, in order, and again where they were lost.

Messages, which ``messages`` defines, come in at one end and out at the other, each once; those that a later one makes
needless, as heartbeats, may be lost.
"""
