"""Databases in SQLite files: their locks live in a file beside them."""

import os
from urllib.parse import unquote

from fencepost.address import Address
from fencepost.errors import ConfigError

BESIDE = ".locks"
"""What the name of the locks' file has more than that of the database. SQLite has one writer for each file: in the
same one, every renewal would wait for the program's transactions, and they for it."""


def address(database: str, *, uri: bool) -> Address:
    """The address of the locks that belong to a database; ConfigError for one that no other connection sees."""
    if uri and database.startswith("file:"):
        path, _, query = database.removeprefix("file:").partition("?")
        if "mode=memory" in query or "vfs=" in query:
            raise ConfigError("this database is not a file that others can open; use memory://, or a sqlite:// URL")
        database = unquote(path.removeprefix("//localhost") if path.startswith("//localhost/") else path)
        if database.startswith("///"):
            database = database[2:]
    if database in ("", ":memory:"):
        raise ConfigError("this database is in memory, and exists for its own connection only; use memory://")
    # As SQLite itself does with the journal: the same file, by whatever link it is reached, has the same locks.
    return Address("sqlite", path=os.path.realpath(database) + BESIDE)
