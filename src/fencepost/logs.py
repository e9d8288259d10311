"""The logger of the core. The first locks import ``logging``; ``import fencepost`` does not."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

__all__ = ["logger"]


def logger() -> "Logger":
    """The logger ``fencepost``.

    The core calls this when it is made, to import ``logging``: later, when there is something to log, that import could
    fail, as in a process without free file descriptors, or while the interpreter shuts down.
    """
    import logging

    return logging.getLogger("fencepost")
