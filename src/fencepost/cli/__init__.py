"""The command line. Commands are listed in ``fencepost.cli.app``, each in a module of its own."""

import sys

from fencepost.cli.text import complain


def main() -> None:
    """Run the command line; never returns."""
    try:
        from fencepost.cli.app import app
    except ModuleNotFoundError as error:
        from fencepost.registry import ours

        if ours(error):
            raise
        complain(f"the command line needs the package {error.name!r}: pip install 'fencepost[cli]'")
        sys.exit(2)
    try:
        app(prog_name="fencepost")
    finally:
        complain()  # a log line may be left that could not be written
