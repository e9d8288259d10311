"""The metrics of a command, as a page of text on a port of its own: nothing needs to be installed for it."""

import socket
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from operator import add
from typing import Any

from fencepost.driver.fork import in_child
from fencepost.events import Event
from fencepost.hooks.instruments import INSTRUMENTS, PREFIX, measure

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PATIENCE = 2.0  # seconds that one client gets in all: they are served one after the other
_HEAD = 8192
_AGAIN = 0.1  # seconds until the next accept() after one that failed, for example for lack of descriptors


class Page:
    """A hook that counts as `prometheus.Metrics` does, and writes the counts in the text format of Prometheus.

    ``names`` are those of the instruments; default: all of them.
    """

    def __init__(self, names: Iterable[str] = INSTRUMENTS) -> None:
        self._gate = threading.RLock()  # a signal handler or __del__ may interrupt a thread that is inside
        self._counters: dict[tuple[str, str], float] = {}
        self._histograms: dict[str, tuple[list[int], list[float]]] = {}  # how many in each bucket; their sum
        for name in names:
            instrument = INSTRUMENTS[name]
            if instrument.buckets:
                self._histograms[name] = [0] * (len(instrument.buckets) + 1), [0.0]
            else:
                self._counters |= {(name, value): 0 for value in instrument.values or ("",)}
        in_child(self, Page._forked)

    def _forked(self) -> None:
        self._gate = threading.RLock()  # a thread of the parent may have held it

    def __call__(self, event: Event) -> None:
        for name, value, label in measure(event):
            if name in self._histograms:
                buckets, total = self._histograms[name]
                with self._gate:
                    buckets[bisect_left(INSTRUMENTS[name].buckets, value)] += 1
                    total[0] += value
            elif (name, label) in self._counters:
                self.add(name, value, label)

    def add(self, name: str, more: float, label: str = "") -> None:
        """Count so many more."""
        with self._gate:
            self._counters[name, label] += more

    def data(self) -> dict[str, Any]:
        """What was counted so far, as JSON has it; ``merge`` adds it to another page."""
        with self._gate:
            counters = [[name, label, count] for (name, label), count in self._counters.items()]
            return {
                "counters": counters,
                "histograms": {name: [list(buckets), *total] for name, (buckets, total) in self._histograms.items()},
            }

    def merge(self, data: dict[str, Any]) -> None:
        """Add what another process has counted."""
        for name, label, count in data["counters"]:
            self.add(name, count, label)
        for name, (counted, more) in data["histograms"].items():
            buckets, total = self._histograms[name]
            with self._gate:
                buckets[:] = map(add, buckets, counted)
                total[0] += more

    def text(self) -> bytes:
        """The page."""
        with self._gate:
            return "".join(f"{line}\n" for line in self._lines()).encode()

    def _lines(self) -> Iterator[str]:
        told = ""
        for (name, value), count in self._counters.items():
            instrument, whole = INSTRUMENTS[name], PREFIX + name
            if name != told:
                yield from _head(name, "counter")
            told = name
            yield f'{whole}{{{instrument.label}="{value}"}} {float(count)}' if value else f"{whole} {float(count)}"
        for name, (buckets, total) in self._histograms.items():
            whole, reached = PREFIX + name, 0
            yield from _head(name, "histogram")
            bounds = INSTRUMENTS[name].buckets
            for bound, count in zip((*map(_bound, bounds), "+Inf"), buckets, strict=True):
                reached += count
                yield f'{whole}_bucket{{le="{bound}"}} {float(reached)}'
            yield f"{whole}_count {float(reached)}"
            if bounds[0] >= 0:  # a sum that may go down is no counter
                yield f"{whole}_sum {total[0]}"


def _head(name: str, kind: str) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {INSTRUMENTS[name].text}"
    yield f"# TYPE {PREFIX}{name} {kind}"


def _bound(number: float) -> str:
    """A bound as prometheus_client writes it, so that the same series come from a program and from a command."""
    text = repr(float(number))
    whole, _, rest = text.partition(".")
    if number <= 0 or len(whole) <= 6:
        return text
    digits = f"{whole[0]}.{whole[1:]}{rest}".rstrip("0.")
    return f"{digits}e+{len(whole) - 1:02}"


class Server:
    """Serves ``GET /metrics`` until it is closed, on a daemon thread.

    Raises OSError, or OverflowError, if the address cannot be used, and RuntimeError if no thread can be started.
    """

    def __init__(self, text: Callable[[], bytes], host: str = "127.0.0.1", port: int = 0) -> None:
        self._text = text
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        bound = self._socket.getsockname()
        self.url = f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}/metrics"
        try:
            threading.Thread(target=self._work, name="fencepost-metrics", daemon=True).start()
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Serve no more."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread from accept(), on systems that do so
        except OSError:
            pass
        self._socket.close()

    def _work(self) -> None:
        while self._socket.fileno() >= 0:
            try:
                client, _ = self._socket.accept()
            except OSError:
                time.sleep(_AGAIN)
                continue
            with client:
                try:
                    self._answer(client)
                except OSError:
                    pass  # the client left, or took too long

    def _answer(self, client: socket.socket) -> None:
        until = time.monotonic() + _PATIENCE
        head = b""
        while b"\r\n\r\n" not in head:
            client.settimeout(max(0.001, until - time.monotonic()))
            piece = client.recv(_HEAD)
            if not piece or len(head) > _HEAD:
                return
            head += piece
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            status, body = "405 Method Not Allowed\r\nAllow: GET, HEAD", b"GET /metrics\n"
        elif path != b"/metrics":
            status, body = "404 Not Found", b"GET /metrics\n"
        else:
            status, body = "200 OK", self._text()
        answer = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
        client.settimeout(max(0.001, until - time.monotonic()))
        client.sendall(f"{answer}Connection: close\r\n\r\n".encode() + (b"" if method == b"HEAD" else body))
