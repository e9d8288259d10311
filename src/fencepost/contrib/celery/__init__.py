"""Celery: tasks that run under a lock, are done once however often they are delivered, and beat that fails over.

    app = Celery("shop", broker="redis://localhost:6379/0")
    app.conf.fencepost_url = "redis://localhost:6379/1"

    @fenced_task(app, key="account/{id}", busy="retry")
    def bill(id, amount, *, lease): ...

    celery -A shop beat -S fencepost.contrib.celery:Scheduler

``tasks`` has the decorator, ``beat`` the scheduler, ``settings`` what both read from the app.
"""

from fencepost.contrib.celery.beat import Scheduler
from fencepost.contrib.celery.tasks import fenced_task

__all__ = ["Scheduler", "fenced_task"]
