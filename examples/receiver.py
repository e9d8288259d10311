"""A small service that takes payments, and refuses a client whose lock was taken over.

    uvicorn receiver:app --app-dir examples --port 8800

    curl -X POST localhost:8800/account/42/pay -H 'X-Fence-Token: 7' -d 10

The middleware finds the stamp; the service admits it in the very transaction that moves the money. A client that holds
the lock sends ``lease.access(resource).headers``, and sends the same headers again when it retries.
"""

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from fencepost.guards import asgi, sqlite

DATABASE = Path("payments.sqlite3")


def pay(fenced: asgi.Fenced, amount: int) -> bool:
    """Take an amount off the account; False if this very payment was made before."""
    with closing(sqlite3.connect(DATABASE)) as conn, sqlite.fenced(conn, fenced.resource, fenced.access):
        conn.execute("CREATE TABLE IF NOT EXISTS account (name TEXT PRIMARY KEY, balance INTEGER NOT NULL)")
        conn.execute("INSERT OR IGNORE INTO account VALUES (?, 100)", (fenced.resource,))
        conn.execute("UPDATE account SET balance = balance - ? WHERE name = ?", (amount, fenced.resource))
    return True


async def service(scope: Any, receive: Any, send: Any) -> None:
    """The service itself knows nothing of headers."""
    body = (await receive()).get("body", b"")
    pay(scope["fencepost"], int(body or 0))
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def account(scope: Any) -> str | None:
    """Which resource a request is about: the account in its path."""
    found = re.fullmatch(r"/(account/\d+)/pay", scope["path"])
    return found[1] if found else None


app = asgi.Fence(service, key=account)
