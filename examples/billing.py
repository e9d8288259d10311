"""The billing run: each account is billed once a month, however many instances run, and wherever one dies.

    python examples/billing.py 2026-11

No lock is needed: each bill has a name, and is remembered in the transaction that takes the money.
"""

import sqlite3
import sys
from contextlib import closing

from fencepost.once import once

DATABASE = "billing.sqlite3"
FEE = 10


def prepare(conn: sqlite3.Connection) -> None:
    """Three accounts with 100 each."""
    with conn:
        conn.execute("CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")
        conn.executemany("INSERT OR IGNORE INTO account VALUES (?, 100)", [(1,), (2,), (3,)])


def bill(conn: sqlite3.Connection, account: int, month: str) -> tuple[int, bool]:
    """Take the month's fee, once; the balance after it, and whether it was taken by this call."""
    with once(conn, f"billing/{account}/{month}") as run:
        if not run.done:
            conn.execute("UPDATE account SET balance = balance - ? WHERE id = ?", (FEE, account))
            (run.result,) = conn.execute("SELECT balance FROM account WHERE id = ?", (account,)).fetchone()
    return run.result, not run.done


def main(month: str) -> None:
    """Bill every account for a month."""
    with closing(sqlite3.connect(DATABASE, timeout=30)) as conn:
        prepare(conn)
        for (account,) in conn.execute("SELECT id FROM account").fetchall():
            balance, now = bill(conn, account, month)
            print(f"account {account}: {balance} left, billed {'now' if now else 'before'}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
