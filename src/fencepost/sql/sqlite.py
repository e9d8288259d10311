"""SQLite under contention."""

import sqlite3
import time


def patiently(db: sqlite3.Connection, statement: str, *args: object, busy: float) -> sqlite3.Cursor:
    """Execute once the file is free: transactions take microseconds, where SQLite itself sleeps milliseconds.

    SQLite does not wait at all for some statements, such as the change to WAL of a file that others open too.
    """
    nap = 0.00005
    until = 0.0
    while True:
        try:
            return db.execute(statement, args)
        except sqlite3.OperationalError as error:
            until = until or time.monotonic() + busy
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(nap)
        nap = min(nap * 1.5, 0.002)
