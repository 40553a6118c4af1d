"""Programs that say by ``tf.distribute`` how they are distributed, written for Keras 2 perhaps: taken at their word.

A program and what it is fed come in; what it makes of Keras goes on as it was meant.
"""
