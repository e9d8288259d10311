"""The commands that this package adds to ``fencepost``, one module each (see `fencepost.registry`)."""
