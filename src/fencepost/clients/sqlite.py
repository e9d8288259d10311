"""Databases in SQLite files: their locks are in another file next to them."""

import os
from urllib.parse import unquote

from fencepost.address import Address
from fencepost.errors import ConfigError

BESIDE = ".locks"
"""The suffix that the locks' file adds to the name of the database. SQLite allows one writer per file: in the same
file, every renewal would wait for the program's transactions, and they for the renewals."""


def address(database: str, *, uri: bool) -> Address:
    """The address of the locks of a database; ConfigError for a database that no other connection can see."""
    if uri and database.startswith("file:"):
        path, _, query = database.removeprefix("file:").partition("?")
        if "mode=memory" in query or "vfs=" in query:
            raise ConfigError("this database is not a file that others can open; use memory://, or a sqlite:// URL")
        database = unquote(path.removeprefix("//localhost") if path.startswith("//localhost/") else path)
        if database.startswith("///"):
            database = database[2:]
    if database in ("", ":memory:"):
        raise ConfigError("this database is in memory, and exists for its own connection only; use memory://")
    # The real path, as SQLite does with the journal: a file that is opened through a link has the same locks.
    return Address("sqlite", path=os.path.realpath(database) + BESIDE)
