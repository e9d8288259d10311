"""The settings of a Celery app that fencepost reads: ``fencepost_url``, ``fencepost_ttl``, ``fencepost_beat_*``."""

import threading
from typing import Any
from weakref import WeakKeyDictionary

import celery

import fencepost
from fencepost.driver.fork import at_fork
from fencepost.errors import ConfigError
from fencepost.sync import Locks

_gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
_connected: "WeakKeyDictionary[celery.Celery, Locks]" = WeakKeyDictionary()


def _forked() -> None:
    global _gate
    _gate = threading.RLock()  # a thread of the parent may have been inside


at_fork(after_in_child=_forked)


def setting(app: celery.Celery, name: str, default: Any = None) -> Any:
    """A setting of the app, as its configuration spells it: ``fencepost_url``, or CELERY_FENCEPOST_URL in Django."""
    value = app.conf.get(name)
    return default if value is None else value


def locks_of(app: celery.Celery) -> Locks:
    """The locks that the app's settings name, one connection for all its tasks. ConfigError if they lead nowhere."""
    found = _connected.get(app)
    if found is None:
        with _gate:
            found = _connected.get(app)
            if found is None:
                made = _connect(app)
                found = _connected.setdefault(app, made)
                if found is not made:  # code that interrupted this one has connected, too
                    made.close()
    return found


def _connect(app: celery.Celery) -> Locks:
    url = setting(app, "fencepost_url")
    if url is not None and not isinstance(url, str):
        raise ConfigError(f"the setting fencepost_url is a URL such as redis://localhost:6379/0, not {url!r}")
    return fencepost.connect(url, ttl=setting(app, "fencepost_ttl", 15.0))
