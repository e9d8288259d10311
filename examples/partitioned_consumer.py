"""Workers that consume a partitioned queue: each partition by one worker at a time, in order, each message once.

    python examples/partitioned_consumer.py                     # in as many terminals as you like; Ctrl-C hands over
    python examples/partitioned_consumer.py send anna "a lamp"  # in another one: something to handle

Kill one with -9, or stop it with Ctrl-Z: the others take its partitions over. What it still had under way is
refused, for the offset moves in the same transaction as the effect, behind a guard that knows the newer token.
"""

import os
import signal
import sqlite3
import sys
from contextlib import closing

import fencepost
from fencepost.fleet import Partition, Partitions
from fencepost.guards import sqlite

PARTITIONS = 8
DATABASE = "queue.sqlite3"
TABLES = """
CREATE TABLE IF NOT EXISTS message (id INTEGER PRIMARY KEY, partition INTEGER NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS next ON message (partition, id);
CREATE TABLE IF NOT EXISTS progress (partition INTEGER PRIMARY KEY, message INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS handled (message INTEGER NOT NULL, worker INTEGER NOT NULL);
"""


def send(conn: sqlite3.Connection, customer: str, body: str) -> None:
    """What producers do: all messages of a customer go to one partition, so their order is kept."""
    number = sum(customer.encode()) % PARTITIONS
    conn.execute("INSERT INTO message (partition, body) VALUES (?, ?)", (number, body))


def handle_next(conn: sqlite3.Connection, partition: Partition) -> str | None:
    """Handle one message; None if there is none. Raises StaleToken if another worker owns the partition now."""
    with sqlite.fenced(conn, partition.name, partition.lease):
        found = conn.execute(
            "SELECT id, body FROM message WHERE partition = :number AND id > "
            "coalesce((SELECT message FROM progress WHERE partition = :number), 0) ORDER BY id LIMIT 1",
            {"number": partition.number},
        ).fetchone()
        if found is None:
            return None
        message, body = found
        conn.execute("INSERT INTO handled VALUES (?, ?)", (message, os.getpid()))
        conn.execute("INSERT OR REPLACE INTO progress VALUES (?, ?)", (partition.number, message))
    return f"message {message}: {body}"


def consume(partition: Partition) -> None:
    """Handle what comes, until the partition moves on."""
    with closing(sqlite3.connect(DATABASE, timeout=30)) as conn:
        while not partition.stop:
            if handled := handle_next(conn, partition):
                print(f" {partition.number} {handled}", flush=True)
            else:
                partition.stop.wait(0.1)


def work(ttl: float = 15) -> None:
    """One worker of the fleet, until it is asked to leave."""
    with fencepost.connect(ttl=ttl) as locks:
        mine = Partitions(
            locks,
            "orders",
            PARTITIONS,
            assign=lambda partition: print(f"+{partition.number} under token {partition.token}", flush=True),
            revoke=lambda partition: print(f"-{partition.number}{' (lost)' * partition.lost}", flush=True),
        )
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: mine.stop())
        mine.run(consume)


def main() -> None:
    with closing(sqlite3.connect(DATABASE, timeout=30)) as conn:
        conn.executescript(TABLES)
        match sys.argv[1:]:
            case [] | [_]:
                work(*map(float, sys.argv[1:]))  # the ttl
            case ["send", customer, body]:
                with conn:
                    send(conn, customer, body)
            case _:
                sys.exit(__doc__)


if __name__ == "__main__":
    main()
