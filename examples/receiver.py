"""A small service that takes payments, and refuses a client whose lock was taken over.

    uvicorn receiver:app --app-dir examples --port 8800

    curl -X POST localhost:8800/account/42/pay -H 'X-Fence-Token: 7' -d 10

The middleware finds the stamp; the service admits it in the very transaction that moves the money. A client that holds
the lock sends ``lease.access(resource).headers``. It sends the same headers and the same body again when it retries,
and a payment that was made before is answered as made.
"""

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from fencepost.guards import asgi, sqlite
from fencepost.guards.policy import Policy

DATABASE = Path("payments.sqlite3")
# The middleware and the guard need the same policy: what the one lets pass on probation, the other must not admit.
# Policy("shadow") only counts, for a start; Policy(keys=...) believes signed tokens only.
POLICY = Policy("strict")


def pay(fenced: asgi.Fenced, body: bytes) -> bool:
    """Take an amount off the account; False if this very payment was made before."""
    with closing(sqlite3.connect(DATABASE)) as conn, conn:
        # The body is the payload, so that the guard knows a retry from another payment under the same stamp.
        # A request without a token comes here only where the policy lets it pass.
        if fenced.sent and not sqlite.admit(conn, fenced.resource, fenced.sent, payload=body, policy=POLICY):
            return False
        conn.execute("CREATE TABLE IF NOT EXISTS account (name TEXT PRIMARY KEY, balance INTEGER NOT NULL)")
        conn.execute("INSERT OR IGNORE INTO account VALUES (?, 100)", (fenced.resource,))
        conn.execute("UPDATE account SET balance = balance - ? WHERE name = ?", (int(body), fenced.resource))
    return True


async def service(scope: Any, receive: Any, send: Any) -> None:
    """The service itself knows nothing of headers."""
    if scope["type"] != "http":
        raise NotImplementedError(f"no {scope['type']} here")
    status = 404
    if fenced := scope.get("fencepost"):
        body = await whole_body(receive)
        status = 400
        if re.fullmatch(rb"[1-9][0-9]{0,8}", body):
            await asyncio.to_thread(pay, fenced, body)
            status = 204
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def whole_body(receive: Any) -> bytes:
    """The body of a request, in however many parts it comes; nothing if it is too long, or the client left."""
    body: bytes = b""
    while len(body) <= 100:
        message = await receive()
        if message["type"] != "http.request":
            break
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body
    return b""


def account(scope: Any) -> str | None:
    """Which resource a request is about: the account in its path."""
    found = re.fullmatch(r"/(account/\d+)/pay", scope["path"])
    return found[1] if found else None


app = asgi.Fence(service, key=account, policy=POLICY)
