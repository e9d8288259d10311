"""Pools of psycopg."""

import inspect
from collections.abc import Mapping
from typing import Any

from fencepost.address import Address
from fencepost.clients import postgres
from fencepost.clients.postgres import Told
from fencepost.driver import Driver


def pool(client: Any, driver: Driver) -> Address:
    """The address of a ConnectionPool or an AsyncConnectionPool."""
    if not callable(client.conninfo) and not callable(client.kwargs):
        postgres.keywords(client.kwargs or {}, client.conninfo or "")  # raises now if something cannot be copied
    return postgres.address(lambda: _tell(client), driver, "the psycopg pool")


def _tell(client: Any) -> Told:
    conninfo = client.conninfo() if callable(client.conninfo) else client.conninfo
    kwargs = client.kwargs() if callable(client.kwargs) else client.kwargs
    if inspect.isawaitable(conninfo) or inspect.isawaitable(kwargs) or _connects_itself(client.connection_class):
        if hasattr(client, "__aenter__"):
            return _told(client, conninfo, kwargs)
        return postgres.from_connection(client.connection_class.connect(conninfo or "", **(kwargs or {})))
    return postgres.keywords(kwargs or {}, conninfo or "")


async def _told(client: Any, conninfo: Any, kwargs: Any) -> Mapping[str, Any]:
    conninfo = await conninfo if inspect.isawaitable(conninfo) else conninfo
    kwargs = await kwargs if inspect.isawaitable(kwargs) else kwargs
    if not _connects_itself(client.connection_class):
        return postgres.keywords(kwargs or {}, conninfo or "")
    made = await client.connection_class.connect(conninfo or "", **(kwargs or {}))
    try:
        return postgres.opened_with(made)
    finally:
        await made.close()


def _connects_itself(kind: Any) -> bool:
    """Whether a connection class has its own connect(), such as one that fetches a token first."""
    return not kind.connect.__func__.__module__.startswith("psycopg.")
