"""The connections to an etcd cluster's members, which survive neither silence nor a fork."""

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from fencepost.address import Address, flag, seconds, secure
from fencepost.backends.etcd.methods import HungUp, Method, Q, R
from fencepost.driver.scope import Visit
from fencepost.errors import BackendError, ConfigError

# How long a fork waits for calls that are under way.
_FORK_GRACE = 2.0
_CHANNEL = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # each connection is ours alone: to close it means something
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A member that fell silent is given up after this; etcd takes offence at more than one ping in 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
]


def _beside_gevent() -> None:
    """In a program that gevent has patched, gRPC must wait as gevent does: its own way stops every greenlet."""
    patched = sys.modules.get("gevent.monkey")
    if patched is not None and patched.is_module_patched("threading"):
        from grpc.experimental.gevent import init_gevent

        init_gevent()


def _close(channels: list[grpc.Channel]) -> None:
    """Close channels apart: gRPC waits forever in it for a thread of its own that could not be started."""
    closing = threading.Thread(
        target=lambda: [channel.close() for channel in channels], name="fencepost-etcd-close", daemon=True
    )
    try:
        closing.start()
    except (RuntimeError, MemoryError):
        return  # no thread can be started just now: they are closed when they are collected
    closing.join(_FORK_GRACE)


class Forks:
    """Keeps calls and forks apart.

    A child forked while gRPC is at work in some thread can neither use gRPC nor be sure to live. So a
    fork waits for the calls under way, and hangs up all connections; both sides connect again. (That
    is why asyncio code, too, is served by grpc and not by grpc.aio, whose threads cannot be stopped.)
    """

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._calls: weakref.WeakSet[Visit] = weakref.WeakSet()
        self._forking = False
        self.connections: weakref.WeakSet[Channels] = weakref.WeakSet()

    def begin(self) -> Visit:
        visit = Visit()
        with self._free:
            while self._forking:
                self._free.wait()
            self._calls.add(visit)
        return visit

    def end(self, visit: Visit) -> None:
        with self._free:
            self._calls.discard(visit)
            if self._forking:
                self._free.notify_all()

    def before(self) -> None:
        with self._free:
            while self._forking:
                self._free.wait()
            self._forking = True
            self._free.wait_for(lambda: not self._calls, _FORK_GRACE)
        for each in list(self.connections):
            each.quiesce()
        _await_grpc()

    def in_parent(self) -> None:
        with self._free:
            self._forking = False
            self._free.notify_all()

    def in_child(self) -> None:
        self._free, self._calls, self._forking = threading.Condition(), weakref.WeakSet(), False


def _await_grpc() -> None:
    """Wait until gRPC's own threads have ended: they do, once their channels are closed."""
    until = time.monotonic() + _FORK_GRACE / 4
    for thread in threading.enumerate():
        if (getattr(getattr(thread, "_target", None), "__module__", None) or "").startswith("grpc."):
            thread.join(max(0.0, until - time.monotonic()))


forks = Forks()
os.register_at_fork(before=forks.before, after_in_parent=forks.in_parent, after_in_child=forks.in_child)
# Never closed. When its last channel goes, gRPC ends, on a thread that holds a lock which every child would
# inherit; so one channel, which never connects, stays.
_anchor: list[grpc.Channel] = []
_parents: list[Any] = []  # nor these: they belong to another process


class Channels:
    """One channel for each member, opened on first use; calls go to ``member``, an index of ``hosts``."""

    def __init__(self, address: Address) -> None:
        _beside_gevent()
        options = address.options(tls=flag, ca=_file, cert=_file, key=_file, timeout=seconds)
        if not address.hosts or not all(host for host, _ in address.hosts) or address.path.strip("/"):
            raise ConfigError("an etcd URL is etcd://host:2379, or etcd://host1,host2,host3:2379; it has no path")
        self.timeout: float = options.get("timeout", 5.0)
        self.hosts = [f"{f'[{host}]' if ':' in host else host}:{port or 2379}" for host, port in address.hosts]
        self.secure = secure(options)
        self.member = 0
        self.dial = 0
        """How often we have hung up."""
        self.closed = False
        # A certificate and its key may be in one file; gRPC ends the process if it is given only one of them.
        self._secrets = options.get("ca"), options.get("key", options.get("cert")), options.get("cert")
        self._gate = threading.Lock()
        self._channels: dict[int, grpc.Channel] = {}
        self._calls: dict[tuple[int, str], Callable[..., Any]] = {}
        self._readers: set[threading.Thread] = set()
        forks.connections.add(self)

    def call(self, method: Method[Q, R], member: int) -> Any:
        """What calls a method of one member; between ``forks.begin`` and ``forks.end`` only."""
        found = self._calls.get((member, method.path))
        if found is None:
            with self._gate:
                found = self._channel(member).unary_unary(method.path, _bytes, method.answer.FromString)
                self._calls[member, method.path] = found
        return found

    def stream(self, method: Method[Q, R], requests: Iterator[Q], metadata: Any) -> Any:
        """Open a two-way stream from the thread that will read it, which calls ``stream_over`` after that."""
        self._readers.add(threading.current_thread())
        visit = forks.begin()
        try:
            with self._gate:
                opened = self._channel(self.member).stream_stream(method.path, _bytes, method.answer.FromString)
            return opened(requests, metadata=metadata)
        except ValueError:  # as gRPC says that a channel is closed
            raise HungUp from None
        finally:
            forks.end(visit)

    def stream_over(self) -> None:
        self._readers.discard(threading.current_thread())

    def _channel(self, member: int) -> grpc.Channel:
        if self.closed:
            raise BackendError("these locks are closed; connect again", backend="etcd", ambiguous=False)
        if member not in self._channels:
            if not _anchor:
                _anchor.append(grpc.insecure_channel("127.0.0.1:1", options=_CHANNEL))
            target = self.hosts[member]
            if self.secure:
                secrets = grpc.ssl_channel_credentials(*self._secrets)
                self._channels[member] = grpc.secure_channel(target, secrets, options=_CHANNEL)
            else:
                self._channels[member] = grpc.insecure_channel(target, options=_CHANNEL)
        return self._channels[member]

    def turn(self, member: int) -> None:
        """Ask another member from now on, unless somebody turned away from ``member`` already."""
        if member == self.member:
            self.member = (member + 1) % len(self.hosts)

    def hang_up(self, dial: int | None = None) -> None:
        """End every call and stream, unless that was done since ``dial``; the next call connects again."""
        with self._gate:
            if dial not in (None, self.dial):
                return
            self.dial += 1
            channels, self._channels, self._calls = self._channels, {}, {}
        _close(list(channels.values()))

    def quiesce(self) -> None:
        """Hang up before a fork, and wait until nobody listens any more."""
        self.hang_up()
        for reader in list(self._readers):
            reader.join(_FORK_GRACE)

    def close(self) -> None:
        self.closed = True
        self.hang_up()

    def forked(self) -> None:
        """Let go of what a fork could not hang up in time."""
        _parents.append(self._channels)


def _bytes(message: Any) -> bytes:
    return message.SerializeToString()  # type: ignore[no-any-return]


def _file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(error.strerror) from None
