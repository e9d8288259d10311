"""The shop, for a beat that is told to end at the moment at which Celery lets go of the result of what it has sent."""

import os
import signal
from typing import Any

from celery.backends.redis import ResultConsumer

from tests.contrib.shop import app

__all__ = ["app"]

_cancel = ResultConsumer.cancel_for


def _told_to_end(self: Any, task: str) -> None:
    ResultConsumer.cancel_for = _cancel  # once is enough
    os.kill(os.getpid(), signal.SIGTERM)
    _cancel(self, task)


ResultConsumer.cancel_for = _told_to_end
