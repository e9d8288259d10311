"""Wakes each waiter when the key before its own is deleted: one watch per waiter, all on one stream."""

import threading
from itertools import count

from fencepost.backends.etcd import messages as pb
from fencepost.backends.etcd.methods import WATCH
from fencepost.backends.etcd.rpc import Rpc
from fencepost.backends.etcd.streams import Stream
from fencepost.driver import Signal


class Watch:
    """One key, or one range of keys, watched for one waiter."""

    __slots__ = ("key", "number", "over", "prompt", "refused", "revision", "signal", "until")

    def __init__(self, number: int, key: bytes, until: bytes, revision: int, signal: Signal, *, prompt: bool) -> None:
        self.number = number
        self.key = key
        self.until = until
        self.revision = revision
        self.signal = signal
        self.prompt = prompt
        self.over = False
        """Its last event has arrived, or none will arrive."""
        self.refused = ""


class Watches:
    """All watches of one connection."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc
        self._gate = threading.RLock()  # the garbage collector may end a waiter, and its watch, anywhere
        self._numbers = count(1)
        self._watches: dict[int, Watch] = {}
        self._stream: Stream[pb.WatchRequest, pb.WatchResponse] | None = None

    def add(
        self,
        key: bytes,
        revision: int,
        signal: Signal,
        until: bytes = b"",
        *,
        puts: bool = False,
        prompt: bool = False,
    ) -> Watch:
        """Set ``signal`` once the key is deleted at ``revision`` or later, or once the watch can no longer tell.

        With ``until``, watch all keys from ``key`` up to ``until``. With ``puts``, watch for puts, not deletions.

        A watch that begins at a past revision misses nothing, but is late: etcd serves such watches every 100 ms. With
        ``prompt`` the watch begins when etcd creates it. If the store was at ``revision`` or later by then, ``signal``
        is set as well, so that the caller looks once for itself; the watch goes on.
        """
        ignored = pb.NODELETE if puts else pb.NOPUT
        start = 0 if prompt else revision
        create = pb.WatchCreateRequest(key=key, range_end=until, start_revision=start, filters=[ignored])
        with self._gate:
            watch = Watch(next(self._numbers), key, until, revision, signal, prompt=prompt)
            create.watch_id = watch.number
            self._open().send(pb.WatchRequest(create_request=create))
            self._watches[watch.number] = watch
            return watch

    def _open(self) -> Stream[pb.WatchRequest, pb.WatchResponse]:
        if self._stream is None:
            self._stream = Stream(self._rpc, WATCH, self._heard, self._over)
        return self._stream

    def remove(self, watch: Watch) -> None:
        with self._gate:
            if self._watches.get(watch.number) is not watch:
                return
            del self._watches[watch.number]
            if self._stream is not None:
                cancel = pb.WatchCancelRequest(watch_id=watch.number)
                self._stream.send(pb.WatchRequest(cancel_request=cancel))

    def restart(self) -> None:
        """Close the stream, which wakes all waiters; the next watch opens another one."""
        with self._gate:
            stream = self._stream
        if stream is not None:
            stream.close()

    close = restart

    def _heard(self, stream: Stream[pb.WatchRequest, pb.WatchResponse], answer: pb.WatchResponse) -> None:
        # etcd before 3.4 and etcd's grpc-proxy ignore our numbers and count from 0 on each stream: an event would wake
        # the wrong waiter, or none.
        renumbered = answer.created and not answer.canceled and answer.watch_id == 0
        if not answer.canceled and not answer.events and not renumbered:
            if answer.created:
                self._begun(answer)
            return
        reason = "" if answer.compact_revision else answer.cancel_reason or "etcd cancelled it"
        refused = bool(answer.canceled and answer.created and reason)
        if renumbered:
            refused, reason = True, "the server numbers watches itself"
        with self._gate:
            watch = self._watches.get(answer.watch_id)
            if refused:
                # etcd does not say which watch it refuses. The stream's login is the usual cause: etcd has forgotten
                # it, or asks for one now. So every waiter looks again, and watches on a stream with a new login.
                for each in list(self._watches.values()):
                    each.refused = reason
            elif watch is None:
                return
            elif answer.canceled:
                # If its history was compacted away, the waiter looks again, and watches from there.
                del self._watches[watch.number]
                watch.refused = reason
            if watch is not None and (answer.canceled or not watch.until):
                watch.over = True  # unlike a single key, a range may have more events
        if refused:
            if not renumbered:
                self._rpc.forget_login()
            self.restart()
        if watch is not None:
            watch.signal.set()

    def _begun(self, answer: pb.WatchResponse) -> None:
        with self._gate:
            watch = self._watches.get(answer.watch_id)
        if watch is not None and watch.prompt and not 0 < answer.header.revision < watch.revision:
            watch.signal.set()

    def _over(self, stream: Stream[pb.WatchRequest, pb.WatchResponse], why: str) -> None:
        with self._gate:
            if stream is not self._stream:
                return
            self._stream = None
            watches, self._watches = self._watches, {}
        for watch in watches.values():
            if not stream.heard:
                # For example, no descriptor is left for its connection. Then the waiter pauses before it watches again:
                # otherwise its reads would keep the server busy.
                watch.refused = watch.refused or why
            watch.over = True
            watch.signal.set()
