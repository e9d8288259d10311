"""What deploy/ runs: workers that count a value up, a leader elected among candidates, and a report from a CronJob.

    python examples/counting.py worker      # as many as you like: together they count without a gap
    python examples/counting.py leader      # one leads, the others stand by
    fencepost run report -- python examples/counting.py report

The settings are environment variables, as containers have them: FENCEPOST_URL (where the locks live), RESOURCE_URL (the
protected resource, such as http://127.0.0.1:8700), RESOURCE_TOKEN_FILE (our token, if the resource asks for one), WORK
(seconds between reading and writing, 0 by default), PAUSE (seconds between two turns, 1 by default) and METRICS_PORT
(serve metrics to Prometheus there; 0 picks a port).
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from prometheus_client import start_http_server

import fencepost
from fencepost.hooks.prometheus import Metrics

RESOURCE = os.environ.get("RESOURCE_URL", "http://127.0.0.1:8700")
TOKEN = os.environ.get("RESOURCE_TOKEN_FILE")
WORK = float(os.environ.get("WORK", "0"))
PAUSE = float(os.environ.get("PAUSE", "1"))
METRICS_PORT = os.environ.get("METRICS_PORT")


def ask(method: str, key: str, headers: dict[str, str], body: bytes | None = None) -> bytes:
    """One request to the protected resource; b"" if it has no such value. OSError if it fails or refuses."""
    if TOKEN:
        headers = headers | {"Authorization": f"Bearer {Path(TOKEN).read_text().strip()}"}
    try:
        with urlopen(Request(f"{RESOURCE}/r/{key}", body, headers, method=method), timeout=10) as answer:
            content: bytes = answer.read()
            return content
    except HTTPError as error:
        with error:
            if error.code == 404:
                return b""
            raise OSError(f"{method} {key}: {error.code} {error.read().decode(errors='replace')}") from None


def count(locks: fencepost.Locks) -> str:
    """Count up once, under the lock: the read carries the token too, so an older holder can no longer write."""
    with locks.lock("counting/value", ttl=10, timeout=30) as lease:
        number = int(ask("GET", "counting/value", lease.access("counting/value").headers) or b"0") + 1
        time.sleep(WORK)
        ask("PUT", "counting/value", lease.access("counting/value").headers, b"%d" % number)
    return f"counted to {number} under token {lease.token}"


def work(locks: fencepost.Locks) -> None:
    """Count now and then. A turn that fails is told, and the next one comes."""
    while True:
        try:
            print(count(locks), flush=True)
        except (fencepost.FencepostError, OSError) as error:
            print(f"not counted: {error}", flush=True)
        time.sleep(PAUSE)


def lead(locks: fencepost.Locks) -> None:
    """Run for election; the leader writes its name, with its term's token, until the term ends."""
    name = socket.gethostname()
    for term in locks.election("counting/leader", ttl=10, metadata=name):
        print(f"leads under token {term.token}", flush=True)
        with term:
            while not term.ended.wait(PAUSE):
                try:
                    ask("PUT", "counting/leader", term.access("counting/leader").headers, name.encode())
                except OSError as error:
                    print(f"not written: {error}", flush=True)


def report() -> None:
    """Write what was counted so far, under the token of the `fencepost run` around this process."""
    token = os.environ.get("FENCE_TOKEN")
    if not token:
        sys.exit("no FENCE_TOKEN: run this under 'fencepost run report --'")
    try:
        counted = ask("GET", "counting/value", {})
        ask("PUT", "counting/report", {"X-Fence-Token": token}, counted or b"0")
    except OSError as error:
        sys.exit(f"not reported: {error}")
    print(f"reported {counted.decode() or 0}", flush=True)


def main() -> None:
    """Do what the first argument says, until SIGTERM; leaving the blocks on the way out releases and resigns."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: sys.exit(0))
    match sys.argv[1:]:
        case ["report"]:
            report()
        case ["worker" | "leader" as role]:
            if METRICS_PORT:
                server, _ = start_http_server(int(METRICS_PORT))
                print(f"metrics on port {server.server_port}", flush=True)
            with fencepost.connect(hooks=[Metrics()]) as locks:
                work(locks) if role == "worker" else lead(locks)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
