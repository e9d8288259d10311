"""The command line. Commands are listed in ``fencepost.cli.app``, each in a module of its own."""

import errno
import os
import sys

from fencepost.cli.text import complain


def main() -> None:
    """Run the command line; never returns."""
    try:
        from fencepost.cli import completion
        from fencepost.cli.app import COMMANDS
        from fencepost.cli.loader import LAB

        asked = completion.VARIABLE in os.environ
        known = COMMANDS | {"worker": LAB["worker"]}  # the one command of the lab that is started by the hundred
        if not asked and len(sys.argv) > 1 and sys.argv[1] in known:
            _quickly(known[sys.argv[1]], sys.argv[2:])
        if asked:
            from typer.completion import completion_init  # type: ignore[attr-defined]

            completion_init()
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
        complain()  # flush stderr: a log line may be left that could not be written


def _quickly(target: str, words: list[str]) -> None:
    """Run a command and exit; return if Typer has to handle it. Messages and exit codes are the same as with Typer."""
    import typer

    from fencepost.cli import exits, loader, quick
    from fencepost.cli.text import in_words
    from fencepost.errors import ConfigError, FencepostError

    try:
        if target == loader.LAB["worker"]:
            loader.same_version()
        function = quick.command(target)
        arguments = quick.parse(function, words)
    except (quick.Unknown, ConfigError):
        return
    except ModuleNotFoundError as error:
        if error.name != "fencepost_lab":
            raise
        return
    try:
        function(**arguments)
        code = 0
    except typer.BadParameter:
        return  # Typer reports it together with the usage; nothing was done yet
    except typer.Exit as end:
        code = end.exit_code
    except FencepostError as error:
        complain(in_words(error))
        code = exits.code(error)
    except KeyboardInterrupt:
        code = exits.SIGNALLED + 2
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader is gone; the flush at exit must not fail
        code = 1
    finally:
        complain()  # flush stderr: a log line may be left that could not be written
    sys.exit(code)
