"""The views of a run that need nothing but IPython: text, and an HTML card. The live panel is in the widgets room.

The state of a run comes in; text, HTML and numbers to draw go out.
"""
