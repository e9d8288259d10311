"""An answer remembered under a request's Idempotency-Key: what the ASGI and the WSGI side have in common."""

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from fencepost import check
from fencepost.errors import ConfigError

LARGEST = 1 << 20
"""The largest body of a request, in bytes, unless another is named."""
_PERSONAL = {"set-cookie", "set-cookie2"}
REPLAYED = ("Idempotency-Replayed", "true")


class Answer(NamedTuple):
    """A whole answer. One of 400 and above says that nothing happened, and is not remembered."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def kept(self, request: str) -> dict[str, Any]:
        """The answer as it is stored, with the fingerprint of its request.

        Cookies are left out: they must not log in another client that sends the same request under the same key.
        """
        return {
            "request": request,
            "status": self.status,
            "headers": [(name, value) for name, value in self.headers if name.lower() not in _PERSONAL],
            "body": base64.b64encode(self.body).decode(),
        }


class Undone(Exception):
    """Rolls back the transaction of a request whose answer says that nothing happened."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer


def run_id(keys: Sequence[str]) -> str:
    """The run that a request's Idempotency-Key names, quoted or not; ConfigError unless there is just one."""
    key = keys[0].strip().strip('"').strip() if len(keys) == 1 else ""
    if not key:
        raise ConfigError("send one Idempotency-Key with this request, and the same one when you repeat it")
    return check.name(f"http/{key}", "run id")


def fingerprint(*parts: bytes) -> str:
    """What tells one request from another: method, target and body."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:%b" % (len(part), part))
    return digest.hexdigest()


def recalled(kept: Any, request: str) -> Answer:
    """The stored answer again; 422 if the key belongs to another request."""
    if kept["request"] != request:
        return problem(422, "this Idempotency-Key belongs to another request; each request takes its own")
    headers = [(name, value) for name, value in kept["headers"]]
    return Answer(kept["status"], [*headers, REPLAYED], base64.b64decode(kept["body"]))


def problem(status: int, text: str) -> Answer:
    """An answer instead of the service's."""
    body = json.dumps({"error": text}, ensure_ascii=False).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    return Answer(status, headers + ([("Retry-After", "1")] if status == 409 else []), body)
