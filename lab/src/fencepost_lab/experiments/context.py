"""What an experiment works with: a folder, stores that end with it, and somebody to tell how it goes."""

import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, TypeVar

from fencepost_lab.history import format as history
from fencepost_lab.history.checks import check
from fencepost_lab.history.kept import found
from fencepost_lab.servers.stores import Running, Store, store

T = TypeVar("T")


def _unheard(text: str) -> None:
    pass


class Context:
    """Where one experiment runs. Leaving it ends its stores and removes its folder."""

    def __init__(self, *, keep: Path | None = None, say: Callable[[str], None] = _unheard) -> None:
        self.say = say
        """Tell people what happens now, in a few words."""
        self.stores: dict[str, Store] = {}
        self.kept: list[dict[str, Any]] = []
        """The histories: the name of each file, and what the check of it has found."""
        self._keep = keep
        self._stack = ExitStack()

    def __enter__(self) -> "Context":
        folder = tempfile.TemporaryDirectory(prefix="fencepost-lab-", ignore_cleanup_errors=True)
        self.folder = Path(self._stack.enter_context(folder))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def store(self, backend: str) -> Store:
        """The store of this name or URL, started once; it ends with the context. Raises ConfigError."""
        if backend not in self.stores:
            self.say(f"starting {backend}" if "://" not in backend else "connecting")
            self.stores[backend] = self._stack.enter_context(store(backend, self.folder))
        return self.stores[backend]

    def open(self, name: str, server: AbstractContextManager[Running]) -> Store:
        """The store of a server that the experiment has made itself, started; it ends with the context."""
        running = self.enter(server)
        self.stores[name] = Store(name, running.url, running)
        return self.stores[name]

    def enter(self, thing: AbstractContextManager[T]) -> T:
        """What ends with the context, in the opposite order."""
        return self._stack.enter_context(thing)

    def keep(self, name: str, lines: Iterable[history.Line]) -> None:
        """Keep a history with the results, compressed, and what was found in it, for ``fencepost check``."""
        if self._keep is not None:
            whole = list(lines)
            history.save(self._keep / f"{name}.jsonl.gz", whole)
            self.kept.append({"file": f"{name}.jsonl.gz"} | found(check(whole)))
