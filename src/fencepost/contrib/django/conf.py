"""The setting ``FENCEPOST``, and what it describes: the locks of this process, and how far its guards go."""

import difflib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.signals import setting_changed
from django.db import connections
from django.utils.module_loading import import_string

from fencepost import check
from fencepost.driver.fork import at_fork
from fencepost.errors import ConfigError
from fencepost.events import Hook
from fencepost.guards.policy import Policy
from fencepost.signing import Keys
from fencepost.sync import Locks, connect

SHORTEST_SECRET = 16


def _url(value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"a URL is a str, not {value!r}; leave it out for $FENCEPOST_URL")
    connect(value).close()  # nothing is contacted
    return value


def _database(value: Any) -> str:
    if value not in settings.DATABASES:
        raise ConfigError(f"settings.DATABASES has no {value!r}; there are {', '.join(settings.DATABASES)}")
    connect(connections[value]).close()  # nothing is contacted
    return str(value)


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"it is a dict of options of the store, such as {{'schema': 'locks'}}, not {value!r}")
    return dict(value)


def _credentials(value: Any) -> Callable[[], Any]:
    found = import_string(value) if isinstance(value, str) else value
    if not callable(found):
        raise ConfigError(f"it is a function that returns a password, or where to import it from, not {value!r}")
    function: Callable[[], Any] = found
    return function


def _limit(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"it is how many may wait for one lock: a number from 0 on, not {value!r}")
    return value


def _hooks(value: Any) -> tuple[Hook, ...]:
    if not isinstance(value, (list, tuple)) or not all(callable(hook) and not isinstance(hook, type) for hook in value):
        raise ConfigError(f"it is a list of callables that take an Event, such as [Log()], not {value!r}")
    return tuple(value)


def _secret(value: Any) -> str:
    if not isinstance(value, str) or len(value) < SHORTEST_SECRET or not value.isascii() or value.split() != [value]:
        raise ConfigError(
            f"it is a secret of at least {SHORTEST_SECRET} ASCII characters without spaces, such as"
            " secrets.token_urlsafe() makes"  # and it is not shown
        )
    return value


def _keys(value: Any) -> Keys:
    if not isinstance(value, Keys):
        raise ConfigError(f"it is a fencepost.signing.Keys, not a {type(value).__name__}")
    return value


def _policy(value: Any) -> Policy | str | Callable[[], str]:
    if isinstance(value, Policy):
        return value
    if isinstance(value, str):
        Policy(value)
        return value
    if callable(value) and not isinstance(value, type):
        flag: Callable[[], str] = value  # not called here: it may need a database, which a check may not have
        return flag
    raise ConfigError(f"it is a mode such as 'shadow', a callable that tells one, or a Policy, not {value!r}")


READERS: dict[str, Callable[[Any], Any]] = {
    "URL": _url,
    "DATABASE": _database,
    "OPTIONS": _options,
    "CREDENTIALS": _credentials,
    "TTL": check.ttl,
    "QUEUE_LIMIT": _limit,
    "HOOKS": _hooks,
    "KEYS": _keys,
    "POLICY": _policy,
    "METRICS_TOKEN": _secret,
}
"""For each key, the function that checks and converts its value; it raises ConfigError for an invalid one."""


class Conf:
    """The content of a setting that has no problems. Nothing is contacted."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        known = _known(value)
        self.locks = _connect(known)
        self.hooks: tuple[Hook, ...] = known.get("HOOKS", ())
        self.metrics_token: str | None = known.get("METRICS_TOKEN")
        self._keys: Keys | None = known.get("KEYS")
        self._policy: Policy | str | Callable[[], str] | None = known.get("POLICY")

    @property
    def policy(self) -> Policy | None:
        """The policy for guards that are given none; None means their default. The first use calls the flag, if any."""
        if self._policy is None and self._keys is not None:
            self._policy = "strict"
        if self._policy is not None and not isinstance(self._policy, Policy):
            self._policy = Policy(self._policy, keys=self._keys)
        return self._policy


def raw() -> Any:
    """The setting as it was written; empty if there is none."""
    return getattr(settings, "FENCEPOST", {})


def problems(value: Any) -> list[tuple[str, str]]:
    """What is wrong with the setting: pairs of a key, '' for the whole, and a sentence."""
    if not isinstance(value, Mapping):
        return [("", f"it is a dict such as {{'URL': 'redis://localhost'}}, not a {type(value).__name__}")]
    found = []
    for key, each in value.items():
        if key not in READERS:
            near = difflib.get_close_matches(str(key).upper(), READERS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(READERS)}"
            found.append((str(key), f"there is no such key; {hint}"))
            continue
        try:
            READERS[key](each)
        except (ConfigError, ImportError) as error:
            found.append((key, str(error)))
    if not found:
        try:
            _connect(_known(value)).close()
        except ConfigError as error:  # no single key is wrong, such as a ttl that this store does not take
            found.append(("", str(error)))
    return found


def _known(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: READERS[key](each) for key, each in value.items()}


def _connect(known: Mapping[str, Any]) -> Locks:
    named = {"TTL", "QUEUE_LIMIT", "HOOKS", "KEYS", "OPTIONS", "CREDENTIALS"}
    options = {key.lower(): each for key, each in known.items() if key in named}
    if "DATABASE" not in known:
        return connect(known.get("URL"), **options)
    if "URL" in known:
        raise ConfigError("it has both URL and DATABASE; leave one of them out")
    return connect(connections[known["DATABASE"]], **options)


_conf: Conf | None = None
_gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside


def current() -> Conf:
    """The setting of this process, read on first use, the same for all threads. ConfigError if a check finds errors."""
    global _conf
    if _conf is None:
        with _gate:
            if _conf is None:
                value = raw()
                if wrong := problems(value):
                    key, sentence = wrong[0]
                    raise ConfigError(f"{named(key)}: {sentence}")
                made = Conf(value)
                if _conf is not None:  # code that interrupted this one was first
                    made.locks.close()
                else:
                    _conf = made
    return _conf


def named(key: str) -> str:
    """A key of the setting, as messages call it."""
    return f"settings.FENCEPOST[{key!r}]" if key else "settings.FENCEPOST"


def _changed(*, setting: str, **_: object) -> None:
    """``override_settings`` was entered or left: what was held under the old setting is released."""
    global _conf
    if setting == "FENCEPOST":
        with _gate:
            before, _conf = _conf, None
        if before is not None:
            before.locks.close()


def _forked() -> None:
    global _gate
    _gate = threading.RLock()  # a thread of the parent may have been inside


setting_changed.connect(_changed, dispatch_uid="fencepost")
at_fork(after_in_child=_forked)


class _Current:
    """Stands for the process's `Locks`, so that an import at the top of a module connects to nothing."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(current().locks, name)

    def __repr__(self) -> str:
        return "<the locks of settings.FENCEPOST>"

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for isinstance(), as Django's own lazy objects have it
        return Locks


if TYPE_CHECKING:
    locks: Locks
    """The locks of this process. Threads share them, and after a fork parent and child each have their own."""
else:
    locks = _Current()
