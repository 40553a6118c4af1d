"""What IPython sees: magics, options, name capture and views.

Lines and cells come in; runs of the cluster go out, and what they show and leave comes back into the notebook.
"""
