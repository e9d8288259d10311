"""A two-way stream to etcd, which a thread of its own reads."""

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Generic

import grpc

from fencepost.backends.etcd.methods import Fault, Method, Q, R, Unfit
from fencepost.backends.etcd.rpc import Rpc
from fencepost.errors import BackendError


class Stream(Generic[Q, R]):
    """A two-way stream, read by a thread of its own; ``over`` is called there, however it ends."""

    def __init__(
        self,
        rpc: Rpc,
        method: Method[Q, R],
        heard: Callable[["Stream[Q, R]", R], None],
        over: Callable[["Stream[Q, R]", str], None],
    ) -> None:
        self._rpc = rpc
        self._method = method
        self._heard = heard
        self._over = over
        self._call: Any = None
        self._closed = False
        self._requests: SimpleQueue[Q | None] = SimpleQueue()
        threading.Thread(target=self._read, name="fencepost-etcd", daemon=True).start()

    def send(self, request: Q) -> None:
        self._requests.put(request)

    def close(self) -> None:
        self._closed = True
        self._requests.put(None)
        if self._call is not None:
            self._call.cancel()

    def _read(self) -> None:
        why, member = "etcd ended the stream", self._rpc.channels.member
        try:
            requests: Iterator[Any] = iter(self._requests.get, None)
            self._call = self._rpc.stream(self._method, requests, member)
            if self._closed:
                self._call.cancel()
            for answer in self._call:
                if not self._method.fits(None, answer):
                    raise Unfit(self._method)
                self._heard(self, answer)
        except grpc.RpcError as error:
            fault = Fault.of(error)
            why = fault.words
            if fault.login:
                self._rpc.forget_login()
            elif not self._closed:
                self._rpc.channels.turn(member)
        except BackendError as error:
            why = str(error)
        except (RuntimeError, MemoryError) as error:
            # gRPC could not start a thread. It never tries again for this channel, so take another.
            why = str(error)
            self._rpc.channels.hang_up()
        finally:
            self._rpc.channels.stream_over()
            self._requests.put(None)
            self._over(self, why)
