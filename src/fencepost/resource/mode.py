"""The mode of a running service, in a file that an operator changes."""

import logging
import os
import stat
import time
from pathlib import Path

from fencepost.errors import ConfigError
from fencepost.guards.policy import fraction

_EVERY = 1.0  # seconds between two looks at the file
_LONGEST = 64  # bytes: no mode is nearly as long
_log = logging.getLogger("fencepost")


class ModeFile:
    """Returns the mode that a file has, for a Policy, which asks at each access. It is read at most once a second.

    The constructor raises ConfigError if the file cannot be read, or has no valid mode. If that happens later, the last
    mode stays, and the log says why, once for each reason.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mode = self._read()
        self._next = time.monotonic() + _EVERY
        self._wrong = ""

    def __call__(self) -> str:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _EVERY
            try:
                said, wrong = self._read(), ""
            except ConfigError as error:
                said, wrong = self._mode, str(error)
            if wrong and wrong != self._wrong:
                _log.error("the service stays in mode %s: %s", self._mode, wrong)
            if said != self._mode:
                _log.warning("the service goes from mode %s to %s, by %s", self._mode, said, self._path)
            self._mode, self._wrong = said, wrong
        return self._mode

    def _read(self) -> str:
        try:
            # O_NONBLOCK: if the path is a named pipe, opening it would otherwise wait for a writer.
            file = os.open(self._path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise ConfigError(f"{str(self._path)!r} is not a plain file; write the mode into one")
                text = os.read(file, _LONGEST).decode("utf-8", "replace").strip()
            finally:
                os.close(file)
        except OSError as error:
            raise ConfigError(f"the file of the mode {str(self._path)!r} cannot be read: {error.strerror}") from error
        try:
            fraction(text)
        except ConfigError as error:
            raise ConfigError(f"{str(self._path)!r}: {error}") from None
        return text
