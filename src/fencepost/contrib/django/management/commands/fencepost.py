"""``manage.py fencepost ls|break``: the locks of settings.FENCEPOST, as the command line shows them."""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from fencepost.cli import exits
from fencepost.cli.text import as_fact, as_line, escaped, listing
from fencepost.contrib.django.conf import locks
from fencepost.errors import FencepostError


class Command(BaseCommand):
    """Look at the locks that are held, and break one."""

    help = "List the locks that are held, or take one from its holder by force."

    def add_arguments(self, parser: Any) -> None:
        """Two subcommands."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ls|break")
        ls = actions.add_parser(
            "ls", help="List the locks that are held: name, token, seconds left, how many wait, and who holds."
        )
        ls.add_argument("prefix", nargs="?", default="", help="Only locks whose names begin with this.")
        taken = actions.add_parser("break", help="Take a lock from its holder; exit code 1 if nobody held it.")
        taken.add_argument("name", help="The lock.")
        for each in (ls, taken):
            each.add_argument("--json", action="store_true", dest="as_json", help="Print JSON instead of text.")

    def handle(self, *_: Any, action: str, as_json: bool, **options: Any) -> None:
        """Do it; CommandError, with the exit code of the command line, for what went wrong."""
        try:
            (self._ls if action == "ls" else self._break)(as_json, **options)
        except FencepostError as error:
            raise CommandError(str(error), returncode=exits.code(error)) from error

    def _ls(self, as_json: bool, *, prefix: str, **_: Any) -> None:
        held = locks.list(prefix)
        if as_json:
            self.stdout.write(json.dumps([as_fact(status) for status in held], indent=2))
        for line in () if as_json else listing(held):
            self.stdout.write(line)

    def _break(self, as_json: bool, *, name: str, **_: Any) -> None:
        ended = locks.break_lock(name)
        if as_json:
            self.stdout.write(json.dumps(ended and as_fact(ended), indent=2))
        if ended is None:
            raise CommandError(f"{escaped(name)}  free: nobody to take it from", returncode=exits.FAILED)
        if not as_json:
            self.stdout.write(escaped(f"ended: {as_line(ended)}"))
