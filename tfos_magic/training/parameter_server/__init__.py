"""Parameter servers: processes that hold the weights, each its share, and run the user's optimizer on them.

Gradients of one worker after the other come in; weights as they are then go out.
"""
