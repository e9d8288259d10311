"""``fencepost top``: the locks of a store in a terminal, as they are now."""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from math import inf, isinf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fencepost.address import masked
from fencepost.backend import Status
from fencepost.cli import exits
from fencepost.cli.options import Backend, Duration, Json, Prefix, store
from fencepost.cli.text import as_fact, escaped, say, table, told
from fencepost.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from fencepost import Locks

_LOOK = 0.2  # seconds in which a change of the terminal's size is noticed


class Sort(StrEnum):
    """By what the locks are sorted; the key of each is its first letter."""

    WAITING = "waiting"
    HELD = "held"
    LEFT = "left"
    NAME = "name"


def top(
    prefix: Prefix = "",
    backend: Backend = None,
    every: Annotated[float, Duration(help="How often to look at the store.")] = 1.0,
    duration: Annotated[float | None, Duration("--for", help="How long to watch; default: until q or Ctrl-C.")] = None,
    sort: Annotated[Sort, typer.Option(help="What comes first; w, h, l and n change it while it runs.")] = Sort.WAITING,
    audit: Annotated[
        Path | None,
        typer.Option(
            envvar="FENCEPOST_AUDIT",
            help="The audit log of guards here: adds how often each lock's resources refused an access.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the table once, as plain text, and end.")] = False,
    as_json: Json = False,
) -> None:
    """Watch the locks of a store in the terminal: who holds and for how long, time left, who waits, refusals.

    Keys: q quits; w, h, l and n sort by waiters, time held, time left and name. HELD counts from when this program
    first saw the lease. Where the output is no terminal it prints the table once. With --json it prints a line for
    each look: {"at": ..., "locks": [...]}.
    """
    import fencepost

    if every <= 0:
        raise typer.BadParameter("--every must be greater than 0: it is the pause between two looks")
    url = store(backend)
    with fencepost.connect(url) as locks:
        view = View(locks, prefix, sort, masked(url), audit)
        if as_json:
            _lines(view, every, 0.0 if once else duration)
        elif once or not _terminal():
            view.look()
            for line in table(view.rows(), right=view.right):
                say(line)
        else:
            _live(view, every, duration)


def _terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _lines(view: "View", every: float, duration: float | None) -> None:
    until = inf if duration is None else time.monotonic() + duration
    while True:
        view.look()
        print(json.dumps({"at": time.time(), "locks": view.facts()}), flush=True)
        left = min(every, until - time.monotonic())
        if left <= 0:
            return
        time.sleep(left)


class View:
    """What is known of the locks, as of the last look."""

    def __init__(self, locks: "Locks", prefix: str, sort: Sort, where: str, audit: Path | None) -> None:
        self._locks = locks
        self._prefix = prefix
        self._where = where
        self._held: list[Status] = []
        self._since: dict[tuple[str, int], float] = {}
        self._refusals = None if audit is None else Refusals(audit)
        self.sort = sort
        self.error = ""

    def look(self) -> None:
        """Ask the store; BackendError if it does not answer."""
        self._held = self._locks.list(self._prefix)
        now = time.monotonic()
        self._since = {(each.name, each.token): self._since.get((each.name, each.token), now) for each in self._held}
        if self._refusals is not None:
            self._refusals.read()

    def facts(self) -> list[dict[str, Any]]:
        """What is held, for programs."""
        facts = []
        for status in self._sorted():
            fact = as_fact(status) | {"held": round(self._for(status), 3)}
            facts.append(fact if self._refusals is None else fact | {"refused": self._refusals.of(status.name)})
        return facts

    @property
    def right(self) -> tuple[int, ...]:
        """The columns of numbers."""
        return (1, 2, 3, 4) if self._refusals is None else (1, 2, 3, 4, 5)

    def rows(self) -> list[tuple[str, ...]]:
        """The table, its head first."""
        refused = () if self._refusals is None else ("REFUSED",)
        found = [("NAME", "WAITING", "HELD", "LEFT", "TOKEN", *refused, "HOLDER")]
        for status in self._sorted():
            left = "-" if isinf(status.remaining) else f"{status.remaining:.1f}s"
            count = () if self._refusals is None else (str(self._refusals.of(status.name)),)
            held = (status.name, str(len(status.waiters)), _span(self._for(status)), left, str(status.token))
            found.append((*held, *count, told(status)))
        return found

    def _for(self, status: Status) -> float:
        return time.monotonic() - self._since[status.name, status.token]

    def _sorted(self) -> list[Status]:
        keys: dict[Sort, Callable[[Status], Any]] = {
            Sort.WAITING: lambda each: -len(each.waiters),
            Sort.HELD: lambda each: self._since[each.name, each.token],
            Sort.LEFT: lambda each: each.remaining,
            Sort.NAME: lambda each: each.name,
        }
        return sorted(self._held, key=lambda each: (keys[self.sort](each), each.name))

    def drawn(self, width: int, height: int) -> "RenderableType":
        """The whole screen, for a terminal of this size."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        waiting = sum(len(each.waiters) for each in self._held)
        clock = time.strftime("%H:%M:%S")
        title = f"{clock}  {len(self._held)} held, {waiting} waiting  {self._where} {self._prefix}"
        head, *rows = self.rows()
        grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=False, width=width)
        for at, name in enumerate(head):
            grid.add_column(
                name,
                justify="right" if at in self.right else "left",
                no_wrap=True,
                overflow="ellipsis",
                min_width=len(name) if at in self.right else 8,
                ratio=None if at in self.right else 1,
                header_style="reverse" if name.lower() == self.sort else "bold",
            )
        room = max(height - 4, 1)
        for row in rows[:room]:
            grid.add_row(*(Text(escaped(cell)) for cell in row), style="yellow" if row[1] != "0" else "")
        more = f"  {len(rows) - room} more" if len(rows) > room else ""
        keys = f"q quit  sort: w waiting  h held  l left  n name{more}"
        foot = Text(escaped(self.error), style="bold red") if self.error else Text(keys, style="dim")
        headline = Text(escaped(title), style="bold")
        for text in (headline, foot):
            text.no_wrap, text.overflow = True, "ellipsis"
        return Group(headline, Text(), grid, foot)


class Refusals:
    """How many accesses guards have refused, by resource, from an audit log; each read goes on where the last ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._file: tuple[int, int] = (0, 0)
        self._rest = b""
        self._counts: Counter[str] = Counter()
        self._read()

    def read(self) -> None:
        """Read the new lines; ConfigError if the log cannot be read. While it is rotated, there may be no file."""
        if self._path.exists():
            self._read()

    def _read(self) -> None:
        try:
            with self._path.open("rb") as log:
                found = os.fstat(log.fileno())
                if (found.st_dev, found.st_ino) != self._file or found.st_size < self._at:  # rotated
                    self._file, self._at, self._rest = (found.st_dev, found.st_ino), 0, b""
                log.seek(self._at)
                while new := log.read(1 << 20):
                    self._take(new)
        except OSError as error:
            raise ConfigError(f"the audit log {str(self._path)!r} cannot be read: {error.strerror}") from error

    def _take(self, new: bytes) -> None:
        self._at += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            try:
                fact = json.loads(line)
                if fact["kind"] == "decision" and fact.get("enforced"):
                    self._counts[fact["name"]] += 1
            except (ValueError, KeyError, TypeError):
                continue  # a line that is incomplete after a crash

    def of(self, name: str) -> int:
        """How many accesses were refused to the resources that a lock of this name covers."""
        below = name.rstrip("/") + "/"
        return sum(count for resource, count in self._counts.items() if resource == name or resource.startswith(below))


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def _live(view: View, every: float, duration: float | None) -> None:
    from rich.console import Console

    console = Console()
    until = inf if duration is None else time.monotonic() + duration
    signal.signal(signal.SIGTERM, _end)  # so that the terminal is restored before the process ends
    try:
        while _suspended(console, view, every, until):
            signal.raise_signal(signal.SIGTSTP)  # the terminal is restored; SIGCONT lets the process go on from here
    except KeyboardInterrupt:
        return


def _suspended(console: "Console", view: View, every: float, until: float) -> bool:
    """Show the locks until ``until``, q or Ctrl-Z; return whether it was Ctrl-Z."""
    from rich.live import Live

    with _ctrl_z() as suspended, _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        look, size = 0.0, (0, 0)
        while not suspended:
            now = time.monotonic()
            if now >= look:
                try:
                    view.look()
                    view.error = ""
                except BackendError as error:  # it may be back at the next look
                    view.error = str(error)
                look = time.monotonic() + every
                size = (0, 0)
            if size != (size := _size(console)):
                live.update(view.drawn(*size), refresh=True)
            left = until - time.monotonic()
            if left <= 0:
                return False
            key = pressed(max(min(look - time.monotonic(), left, _LOOK), 0.0))
            if key == "q":
                return False
            for each in Sort:
                if key == each[0]:
                    view.sort, size = each, (0, 0)
    return True


@contextmanager
def _ctrl_z() -> Iterator[list[int]]:
    """Collect the signal of Ctrl-Z in a list, instead of being stopped by it."""
    came: list[int] = []
    if not hasattr(signal, "SIGTSTP"):  # not on Unix
        yield came
        return
    before = signal.signal(signal.SIGTSTP, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        signal.signal(signal.SIGTSTP, before)


def _end(number: int, _: object) -> NoReturn:
    sys.exit(exits.SIGNALLED + number)


def _size(console: "Console") -> tuple[int, int]:
    return console.size.width, console.size.height


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key, and returns it; empty if none was pressed."""
    try:
        import select
        import termios
        import tty

        terminal = sys.stdin.fileno() if sys.stdin.isatty() else None
    except (ImportError, ValueError, AttributeError):  # not on Unix, or the input is closed
        terminal = None
    if terminal is None:

        def nothing(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield nothing
        return
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        if not select.select([terminal], [], [], seconds)[0]:
            return ""
        key = os.read(terminal, 1).decode("ascii", "replace")
        return key or "q"  # the terminal is gone

    tty.setcbreak(terminal)
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
