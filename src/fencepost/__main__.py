"""``python -m fencepost``: the command line."""

from fencepost.cli import main

main()
