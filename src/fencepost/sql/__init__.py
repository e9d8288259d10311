"""SQL through the caller's own connection, of any library."""

from collections.abc import Coroutine
from typing import Any, Protocol, TypeAlias

__all__ = ["AsyncioConnection", "BlockingConnection"]


class _Commits(Protocol):
    """psycopg, sqlite3, SQLAlchemy's Connection, Session and scoped_session."""

    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class _Proxy(Protocol):
    """django.db.connection, which defines only this."""

    def __getattr__(self, item: str, /) -> Any: ...


BlockingConnection: TypeAlias = _Commits | _Proxy
"""A connection whose calls block. It is described by its methods, so no library is imported, not even for types."""


class AsyncioConnection(Protocol):
    """A connection of psycopg, or SQLAlchemy's AsyncConnection or AsyncSession."""

    def commit(self) -> Coroutine[Any, Any, None]: ...
    def rollback(self) -> Coroutine[Any, Any, None]: ...
