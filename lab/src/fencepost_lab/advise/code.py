"""The code that an advice prints: each block runs as it is, once its names lead somewhere."""

import json
from string import Template

DATA = {
    "sqlite": "app.sqlite3",
    "postgres": "postgresql://localhost/app",
    "redis": "redis://localhost:6379/0",
    "etcd": "http://localhost:2379",
    "s3": "bucket",
    "file": "state",
    "http": "http://localhost:8800",
}
"""Where the data is, as each block writes it, unless it is told."""

LOCKS = {
    "sqlite": "sqlite:locks.sqlite3",
    "postgres": "postgresql://localhost/app",
    "redis": "redis://localhost:6379/0",
    "redlock": "redlock://redis-1,redis-2,redis-3,redis-4,redis-5",
    "etcd": "etcd://etcd-1,etcd-2,etcd-3:2379",
    "zookeeper": "zk://zk-1,zk-2,zk-3:2181",
    "consul": "consul://localhost:8500",
}
"""Where locks live, likewise."""

_SQLITE = """\
import sqlite3

$imports

conn = sqlite3.connect("$data")
conn.execute("CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER)")
conn.execute("INSERT OR IGNORE INTO account VALUES (42, 100)")
conn.commit()
"""
_POSTGRES = """\
import psycopg

$imports

conn = psycopg.connect("$data")
conn.execute("CREATE TABLE IF NOT EXISTS account (id integer PRIMARY KEY, balance integer)")
conn.execute("INSERT INTO account VALUES (42, 100) ON CONFLICT DO NOTHING")
"""
_INSTALL = "postgres.install(conn)  # once, or its statements in a migration: postgres.ddl()\nconn.commit()\n"
_ONCE = """
with once(conn, "billing/42/2026-11") as run:
    if not run.done:
        conn.execute("UPDATE account SET balance = balance - 10 WHERE id = 42")
        run.result = {"billed": 10}
print(run.result, "as before" if run.done else "just now")
"""
_FENCED = """
locks = fencepost.connect("$locks", ttl=$ttl)
with locks.lock("account/42") as lease, $guard.fenced(conn, "account/42", lease):
    (balance,) = conn.execute("SELECT balance FROM account WHERE id = 42").fetchone()
    conn.execute("UPDATE account SET balance = $mark WHERE id = 42", (balance - 10,))
"""

_BLOCKS: dict[tuple[str, str], tuple[str, str]] = {
    # (what, where the data is): imports, code
    ("avoid", "sqlite"): (
        "",
        _SQLITE.replace("\n$imports\n", "")
        + """
# Say what is to be true, not what to add: however often it runs, it comes to the same.
conn.execute("UPDATE account SET balance = 90 WHERE id = 42")
conn.commit()
""",
    ),
    ("avoid", "postgres"): (
        "",
        _POSTGRES.replace("\n$imports\n", "")
        + """
# Say what is to be true, not what to add: however often it runs, it comes to the same.
conn.execute("UPDATE account SET balance = 90 WHERE id = 42")
conn.commit()
""",
    ),
    ("avoid", "other"): (
        "",
        """\
import os
import tempfile

# Write the whole, then put it in its place: however often it runs, and on however many machines, it comes to the same.
with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as report:
    report.write("2026-11-15 42")
os.replace(report.name, "report.txt")
""",
    ),
    ("once", "sqlite"): ("from fencepost.once import once", _SQLITE + _ONCE),
    ("once", "postgres"): (
        "from fencepost.guards import postgres\nfrom fencepost.once import once",
        _POSTGRES + _INSTALL + _ONCE,
    ),
    ("once", "redis"): (
        "",
        """\
import redis

from fencepost.guards import RedisGuard
from fencepost.once import once

guard = RedisGuard(redis.Redis.from_url("$data"))
with once(guard, "billing/42/2026-11") as run:
    if not run.done:
        run.execute("DECRBY", "account:42", 10)
        run.execute("RPUSH", "ledger:42", "billed 10")
        run.result = {"billed": 10}
print(run.result, "as before" if run.done else "just now")
""",
    ),
    ("once", "http"): (
        "",
        """\
import sqlite3
import threading
import urllib.request
from contextlib import closing
from wsgiref.simple_server import make_server

from fencepost.once.wsgi import Once

with closing(sqlite3.connect("app.sqlite3")) as conn:
    conn.execute("CREATE TABLE IF NOT EXISTS bill (account TEXT, amount INTEGER)")


def service(environ, start):  # the receiver: its effect and its answer are kept in one transaction
    environ["fencepost.conn"].execute("INSERT INTO bill VALUES ('42', 10)")
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"billed"]


app = Once(service, open=lambda: closing(sqlite3.connect("app.sqlite3")))
server = make_server("127.0.0.1", 0, app)
threading.Thread(target=server.serve_forever, daemon=True).start()

request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/bills", method="POST")
request.add_header("Idempotency-Key", "billing/42/2026-11")  # the same however often the sender tries
for attempt in range(2):
    print(urllib.request.urlopen(request).read())
server.shutdown()
server.server_close()
""",
    ),
    ("transaction", "sqlite"): (
        "",
        _SQLITE.replace("\n$imports\n", "")
        + """
conn.execute("BEGIN IMMEDIATE")  # from here to the commit, nobody else writes to this file
(balance,) = conn.execute("SELECT balance FROM account WHERE id = 42").fetchone()
conn.execute("UPDATE account SET balance = ? WHERE id = 42", (balance - 10,))
conn.commit()
""",
    ),
    ("transaction", "postgres"): (
        "from fencepost.guards import postgres",
        _POSTGRES
        + """conn.commit()

with conn.transaction():
    postgres.locked(conn, "account/42")  # until the transaction ends, however it ends
    (balance,) = conn.execute("SELECT balance FROM account WHERE id = 42").fetchone()
    conn.execute("UPDATE account SET balance = %s WHERE id = 42", (balance - 10,))
""",
    ),
    ("lease", "sqlite"): (
        "import fencepost\nfrom fencepost.guards import sqlite",
        _SQLITE + _FENCED.replace("$guard", "sqlite").replace("$mark", "?"),
    ),
    ("lease", "postgres"): (
        "import fencepost\nfrom fencepost.guards import postgres",
        _POSTGRES + _INSTALL + _FENCED.replace("$guard", "postgres").replace("$mark", "%s"),
    ),
    ("lease", "redis"): (
        "",
        """\
import redis

import fencepost
from fencepost.guards import RedisGuard

guard = RedisGuard(redis.Redis.from_url("$data"))
locks = fencepost.connect("$locks", ttl=$ttl)
with locks.lock("account:42") as lease:
    balance = int(guard.read("GET", "account:42", lease=lease) or 100)
    guard.execute("SET", "account:42", balance - 10, lease=lease)
""",
    ),
    ("lease", "etcd"): (
        "",
        """\
import fencepost
from fencepost.guards import EtcdGuard

guard = EtcdGuard("$data")
locks = fencepost.connect("$locks", ttl=$ttl)
with locks.lock("account/42") as lease:
    guard.update("account/42", lambda before: b"%d" % (int(before or 100) - 10), lease)
""",
    ),
    ("lease", "s3"): (
        "",
        """\
import boto3

import fencepost
from fencepost.guards import S3Guard

guard = S3Guard(boto3.client("s3"), "$data")
locks = fencepost.connect("$locks", ttl=$ttl)
with locks.lock("account/42") as lease:
    guard.update("account/42", lambda before: b"%d" % (int(before or 100) - 10), lease)
""",
    ),
    ("lease", "file"): (
        "",
        """\
import fencepost
from fencepost.guards import FileGuard

guard = FileGuard("$data")
locks = fencepost.connect("$locks", ttl=$ttl)
with locks.lock("account/42") as lease:
    guard.update("account/42", lambda before: b"%d" % (int(before or 100) - 10), lease)
""",
    ),
    ("lease", "http"): (
        "",
        """\
import urllib.request

import fencepost

# The service is behind guards.asgi or guards.wsgi, or is 'fencepost resource'.
locks = fencepost.connect("$locks", ttl=$ttl)
with locks.lock("account/42") as lease:
    request = urllib.request.Request("$data/r/account/42", b"90", lease.access("account/42").headers, method="PUT")
    urllib.request.urlopen(request)  # 409 if this holder was replaced
""",
    ),
    ("effort", "waste"): (
        "",
        """\
import fencepost

locks = fencepost.connect("$locks", ttl=$ttl)
lease = locks.try_acquire("warm-the-cache")
if lease is None:
    print("somebody else is at it")
else:
    print("warming the cache")  # the work; should it run twice for once, nothing is lost but effort
    lease.release()
""",
    ),
    ("effort", "other"): (
        "",
        """\
import fencepost

locks = fencepost.connect("$locks", ttl=$ttl)
with locks.lock("account/42") as lease:
    lease.check()  # right before each call: a holder that knows it was replaced stops here
    print("POST with", lease.access().headers["Idempotency-Key"])  # their API can tell a retry by it, if it looks
""",
    ),
}


def names() -> list[tuple[str, str]]:
    """Every block there is."""
    return sorted(_BLOCKS)


def block(what: str, where: str, *, ttl: float, data: str, locks: str) -> str:
    """The block, with the ttl, the data and the locks filled in."""
    imports, text = _BLOCKS[what, where]
    text = text.replace("$imports", imports) if imports else text
    return Template(text).substitute(ttl=f"{ttl:g}", data=_quoted(data), locks=_quoted(locks))


def _quoted(where: str) -> str:
    """As it stands between the quotes of the code: JSON escapes as Python does."""
    return json.dumps(where, ensure_ascii=False)[1:-1]
