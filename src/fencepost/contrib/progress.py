"""What a fleet has done, by name, kept behind a guard: a process that was replaced can no longer change it."""

import json
import threading
from abc import ABC, abstractmethod
from typing import Any

from fencepost.address import masked
from fencepost.errors import ConfigError
from fencepost.guards.cas import Guard
from fencepost.guards.memory import MemoryGuard
from fencepost.guards.redis import RedisGuard
from fencepost.lease import BaseLease

_SECONDS = 5.0  # for the server's answer


class Progress(ABC):
    """A text for each name. Reading enters, so that what earlier leases still have under way is refused.

    Both raise the Refused of the verdict, and BackendError if the store does not answer.
    """

    @abstractmethod
    def read(self, lease: BaseLease) -> dict[str, str]:
        """All that was written so far."""

    @abstractmethod
    def write(self, name: str, text: str, lease: BaseLease) -> None:
        """Keep ``text`` under ``name``. Call it after ``read``, with the same lease."""


class Hash(Progress):
    """A hash in Redis."""

    def __init__(self, guard: RedisGuard, key: str) -> None:
        self._guard = guard
        self._key = key

    def read(self, lease: BaseLease) -> dict[str, str]:
        flat = [_text(each) for each in self._guard.read("HGETALL", self._key, lease=lease)]
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def write(self, name: str, text: str, lease: BaseLease) -> None:
        self._guard.execute("HSET", self._key, name, text, lease=lease)


class Document(Progress):
    """One JSON document behind a guard that keeps bytes: a file, an object in S3, a key in etcd."""

    def __init__(self, guard: "Guard | MemoryGuard[bytes]", resource: str) -> None:
        self._guard = guard
        self._resource = resource
        self._known: dict[str, str] = {}
        self._gate = threading.Lock()

    def read(self, lease: BaseLease) -> dict[str, str]:
        with self._gate:
            found = self._guard.read(self._resource, lease)
            self._known = json.loads(found) if found else {}
            return dict(self._known)

    def write(self, name: str, text: str, lease: BaseLease) -> None:
        with self._gate:
            changed = self._known | {name: text}
            self._guard.write(self._resource, json.dumps(changed).encode(), lease)
            self._known = changed


def open_progress(place: Any, name: str, setting: str) -> Progress:
    """The progress called ``name`` in ``place``: a redis:// URL, or a guard. ConfigError names the ``setting``."""
    if isinstance(place, RedisGuard):
        return Hash(place, name)
    if isinstance(place, (Guard, MemoryGuard)):
        return Document(place, name)
    if isinstance(place, str) and place.startswith(("redis://", "rediss://", "unix://")):
        return Hash(RedisGuard(_client(place)), name)
    shown = masked(place) if isinstance(place, str) else place
    raise ConfigError(
        f"{setting} is {shown!r}; it takes a redis:// URL as redis-py reads it, or a guard: RedisGuard, FileGuard, "
        f"S3Guard, EtcdGuard"
    )


def _client(url: str) -> Any:
    try:
        import redis
    except ModuleNotFoundError as error:
        raise ConfigError(f"redis:// needs the package {error.name!r}: pip install 'fencepost[redis-py]'") from error
    try:
        client = redis.Redis.from_url(url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS)
        client.connection_pool.make_connection()  # connects to nothing, but raises for unknown options
        return client
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{masked(url)!r} is no URL of redis-py: {error}") from None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
