"""Structured log lines, as a hook: ``connect(..., hooks=[Log()])``."""

import logging
import re

from fencepost.events import Event
from fencepost.rule import Verdict

__all__ = ["Log"]

_WORD = re.compile(r"[\w.:/%+@-]+", re.ASCII)
_LEVELS = {
    "lost": logging.WARNING,
    "at_risk": logging.WARNING,
    "not_owner": logging.WARNING,
    "override": logging.WARNING,
    "raise_mark": logging.WARNING,
    "lower_mark": logging.WARNING,
    "timeout": logging.INFO,
    "abandoned": logging.INFO,
    "unrenewed": logging.INFO,
    "recovered": logging.INFO,
}


class Log:
    """Writes each event to a logger: a sentence to read, and its facts as the record's ``fencepost`` to parse.

    A clash is an error. Losses, refusals and changes by hand are warnings. Timeouts and renewals without an answer are
    info, and normal operation is debug. Any formatter that shows a record's extra attributes, such as
    python-json-logger's, shows the facts.

        locks = fencepost.connect("redis://localhost", hooks=[Log()])
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("fencepost.events")

    def __call__(self, event: Event) -> None:
        level = _level(event)
        if self._logger.isEnabledFor(level):
            facts = event.facts()
            rest = " ".join(f"{name}={_word(facts[name])}" for name in facts if name not in ("kind", "name", "at"))
            self._logger.log(level, "%s %r %s", event.kind, event.name, rest, extra={"fencepost": facts})


def _word(value: object) -> str:
    """A value as one word: a holder comes from the client, and must not look like another field, or another line."""
    text = str(value)
    return text if _WORD.fullmatch(text) else repr(text)


def _level(event: Event) -> int:
    if event.kind == "decision":
        if event.verdict is Verdict.CLASH:
            return logging.ERROR
        return logging.DEBUG if event.enforced is None else logging.WARNING
    return _LEVELS.get(event.kind, logging.DEBUG)
