"""In a trainer: what lies with its agent, or in files, as the ``tf.data.Dataset`` that the cell reads.

Blocks of rows come in; batches of the worker's share, in the order the run asks for, go out.
"""
