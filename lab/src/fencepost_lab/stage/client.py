"""A client of the protected resource, made of the standard library."""

import http.client
import json
import select
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from fencepost.errors import BackendError, ConfigError
from fencepost.hooks.instruments import PREFIX


class Reply(NamedTuple):
    """What the resource answered."""

    status: int
    body: bytes
    verdict: str

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of a JSON answer; none if it is not one."""
        try:
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class Client:
    """One connection to a resource service; for one thread. Raises BackendError if it does not answer."""

    def __init__(self, url: str, *, timeout: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"the resource's address looks like http://127.0.0.1:8700, not {url!r}")
        self._url = url
        self._path = parts.path.rstrip("/")
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout)
        self._sent: tuple[str, str, bytes | None, dict[str, str]] | None = None

    def read(self, key: str, headers: Mapping[str, str] | None = None) -> Reply:
        """Read a value; with a lease's headers this enters."""
        self._send("GET", _resource(key), None, dict(headers or {}))
        return self.answer()

    def send(self, key: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a write without waiting for its answer."""
        self._send("PUT", _resource(key), data, dict(headers or {}))

    def answer(self) -> Reply:
        """The answer to what was sent last.

        A request whose connection broke is sent once more if that is safe: a read, or a write whose
        stamp tells the resource that it is the same one.
        """
        if self._sent is None:
            raise ConfigError("nothing was sent, so there is no answer")
        (method, path, data, headers), self._sent = self._sent, None
        try:
            return self._receive()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if isinstance(error, TimeoutError) or (method == "PUT" and "X-Fence-Token" not in headers):
                raise self._silent(error) from error
        self._send(method, path, data, headers)
        self._sent = None
        try:
            return self._receive()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self._silent(error) from error

    def metric(self, name: str) -> int:
        """One number of the service's own count, by its name without the prefix."""
        self._send("GET", "/metrics", None, {})
        for line in self.answer().body.decode().splitlines():
            if line.startswith(f"{PREFIX}{name} "):
                return int(float(line.rpartition(" ")[2]))
        raise BackendError(f"{self._url} has no metric {name!r}", backend="resource", ambiguous=False)

    def close(self) -> None:
        """Disconnect; the next request connects again."""
        self._connection.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> None:
        # Readable although nothing was asked: the service has closed an idle connection.
        if self._connection.sock is not None and select.select([self._connection.sock], [], [], 0)[0]:
            self._connection.close()
        try:
            self._connection.request(method, self._path + path, data, headers)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self._silent(error) from error
        self._sent = method, path, data, headers

    def _receive(self) -> Reply:
        response = self._connection.getresponse()
        return Reply(response.status, response.read(), response.headers.get("X-Fence-Verdict", ""))

    def _silent(self, error: Exception) -> BackendError:
        why = str(error) or type(error).__name__
        return BackendError(f"{self._url} did not answer: {why}", backend="resource", ambiguous=True)


def _resource(key: str) -> str:
    return "/r/" + quote(key, safe="")
