"""What IPython sees: magics, options, name capture and views."""
