"""Serves the page and runs scenarios for it, on this host only.

GET  /                        the page; everything else below static/ by its path
GET  /data/options.json       {"engine", "play", "backends", "fencings", "settings" (defaults), "actions"...}
GET  /data/scenarios.json     the guided scenarios; each variant has "scenario" and "trace", a path
GET  /data/traces/NAME.jsonl  the trace of a guided variant
GET  /data/seeds/N.json       the scenario of seed N of the seeded tests
GET  /data/history.jsonl      what was given with --play: a history, or the run of a scenario
POST /run                     a scenario as JSON; answers its trace as JSON lines, or 400 {"error": "..."}
POST /check                   a history as JSON lines; answers what `fencepost check --json` says of it
"""

import json
import mimetypes
import sys
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fencepost.errors import ConfigError
from fencepost_lab.sim.answers import answer
from fencepost_lab.sim.site import STATIC, data, played

MAX_BODY = 1 << 20
MAX_HISTORY = 64 << 20
_TYPES = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".jsonl": "application/x-ndjson",
    ".svg": "image/svg+xml",
}


class Page(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server_version = "fencepost"
    sys_version = ""

    def __init__(self, play: Path | None, *args: object) -> None:
        self._play = play
        super().__init__(*args)  # type: ignore[arg-type]  # the server passes what BaseHTTPRequestHandler takes

    def do_GET(self) -> None:
        if not self._local():
            return
        path = unquote(urlsplit(self.path).path).removeprefix("/") or "index.html"
        if path.startswith("data/"):
            try:
                self._answer(200, data(path.removeprefix("data/"), play=self._play).encode(), path)
            except ConfigError as error:
                self._fail(404, str(error))
            return
        parts = path.split("/")
        file = STATIC.joinpath(*parts)
        if ".." in parts or "\\" in path or not file.is_file():
            self._fail(404, f"there is no {path!r}")
            return
        self._answer(200, file.read_bytes(), path)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        if not self._local():
            return
        what = urlsplit(self.path).path.removeprefix("/")
        most = MAX_HISTORY if what == "check" else MAX_BODY
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 20 and int(length) <= most):
            self.close_connection = True
            self._fail(413, f"what is posted has at most {most} bytes, and says how many in Content-Length")
            return
        body = self.rfile.read(int(length))
        if what not in ("run", "check"):
            self._fail(404, "scenarios are posted to /run, histories to /check")
            return
        try:
            self._answer(200, answer(what, body).encode(), "trace.jsonl" if what == "run" else "report.json")
        except ConfigError as error:
            self._fail(400, str(error))

    def _local(self) -> bool:
        """Answer only those who ask for this host by its own name: no other site's page may."""
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        origin = self.headers.get("Origin")
        if host in ("127.0.0.1", "localhost", "[::1]") and (
            origin is None or origin == f"http://{self.headers.get('Host')}"
        ):
            return True
        self.close_connection = True
        self._fail(403, "this page is for this host only")
        return False

    def _fail(self, status: int, why: str) -> None:
        self._answer(status, json.dumps({"error": why}).encode(), "error.json")

    def _answer(self, status: int, body: bytes, name: str) -> None:
        suffix = Path(name).suffix
        kind = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        if kind.startswith("text/") or kind in ("application/json", "application/x-ndjson"):
            kind += "; charset=utf-8"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header(
            "Content-Security-Policy", "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'self'"
        )
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # the page asks for many files at once; of more than five, some would be reset

    def handle_error(self, request: object, client_address: object) -> None:
        # Who closes the page while it loads has done nothing wrong, and no traceback is to tell of it.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # passed on as they came


def server(port: int, play: Path | None = None) -> ThreadingHTTPServer:
    """A server on 127.0.0.1, not yet serving; ConfigError if the port is taken, or ``play`` cannot be read."""
    if play is not None:
        played(play)
    try:
        return _Server(("127.0.0.1", port), partial(Page, play))
    except OSError as error:
        raise ConfigError(f"cannot listen on port {port} of 127.0.0.1: {error.strerror}; try --port 0") from error
