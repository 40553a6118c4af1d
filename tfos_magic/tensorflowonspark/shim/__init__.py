"""The module by the name of the original package, which executors get as a file.

Imports of a program come in; the modules of the room above go out.
"""
