"""The command line. Commands are listed in ``fencepost.cli.app``, each in a module of its own."""

import sys


def main() -> None:
    """Run the command line; never returns."""
    try:
        from fencepost.cli.app import app
    except ModuleNotFoundError as error:
        from fencepost.registry import ours

        if ours(error):
            raise
        needs = f"the command line needs the package {error.name!r}: pip install 'fencepost[cli]'"
        print(f"fencepost: {needs}", file=sys.stderr)
        sys.exit(2)
    app(prog_name="fencepost")
