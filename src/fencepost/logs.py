"""The logger of the core, which is loaded with the first locks and not by ``import fencepost``."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

__all__ = ["logger"]


def logger() -> "Logger":
    """The logger ``fencepost``.

    The core asks for it when it is made: a first import could fail where something is to be logged later, such as in a
    process without free descriptors, or at the end of the interpreter.
    """
    import logging

    return logging.getLogger("fencepost")
