"""What an experiment works with: a folder, stores that end with it, and somebody to tell how it goes."""

import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from fencepost_lab.history import format as history
from fencepost_lab.servers.stores import Store, store


def _unheard(text: str) -> None:
    pass


class Context:
    """Where one experiment runs. Leaving it ends its stores and removes its folder."""

    def __init__(self, *, keep: Path | None = None, say: Callable[[str], None] = _unheard) -> None:
        self.say = say
        """Tell people what happens now, in a few words."""
        self.stores: dict[str, Store] = {}
        self.kept: list[str] = []
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

    def keep(self, name: str, lines: Iterable[history.Line]) -> None:
        """Keep a history with the results, for ``fencepost check``."""
        if self._keep is not None:
            (self._keep / name).write_text(history.lines(lines), "utf-8")
            self.kept.append(name)
