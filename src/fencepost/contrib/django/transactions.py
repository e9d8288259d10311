"""Transactions of Django that a guard admits: the mark moves with what the ORM writes."""

from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections

from fencepost.contrib.django import conf
from fencepost.errors import ConfigError
from fencepost.guards import postgres, sqlite
from fencepost.guards.policy import Policy
from fencepost.lease import AMBIENT, FenceOrAmbient
from fencepost.sql.connections import Fenced

_GUARDS = {"postgresql": postgres, "sqlite": sqlite}


def fenced(
    resource: str, lease: FenceOrAmbient = AMBIENT, *, using: str | None = None, policy: Policy | None = None
) -> Fenced[Any]:
    """``transaction.atomic(durable=True)`` for the holder of a lock: admitted before it can read, committed at the end.

    Without a lease, it uses that of an enclosing ``with lock:`` whose name is the resource's, or a path above it.
    Raises StaleToken, or another Refused, for a holder that was replaced, and then the block does not begin;
    ConfigError inside a transaction that has begun already: call ``admit`` there, before its first read.

        with locks.lock("account/42"), fenced("account/42"):
            ...
    """
    guard, conn = _guard(using)
    given = conf.current()
    block: Fenced[Any] = guard.fenced(conn, resource, lease, hooks=given.hooks, policy=policy or given.policy)
    return block


def admit(
    resource: str,
    lease: FenceOrAmbient = AMBIENT,
    *,
    using: str | None = None,
    payload: bytes | None = None,
    policy: Policy | None = None,
) -> bool:
    """As ``fenced``, but in a transaction of yours, such as a view's with ATOMIC_REQUESTS; call it before any read.

    The mark's row stays locked until the transaction ends, commits with it and rolls back with it. Raises as
    ``fenced`` does: let the error roll the transaction back. For ``payload``, see `fencepost.guards.postgres.admit`.

        with transaction.atomic():
            admit("account/42", lease)
            Account.objects.filter(pk=42).update(balance=90)
    """
    guard, conn = _guard(using)
    given = conf.current()
    policy = policy or given.policy
    fresh: bool = guard.admit(conn, resource, lease, payload=payload, hooks=given.hooks, policy=policy)
    return fresh


def _guard(using: str | None) -> tuple[Any, Any]:
    conn = connections[using or DEFAULT_DB_ALIAS]
    guard = _GUARDS.get(conn.vendor)
    if guard is None:
        raise ConfigError(
            f"there are guards for Postgres and SQLite, and the database {conn.alias!r} is {conn.vendor}; for a table "
            f"that carries its own epoch there is fencepost.guards.column"
        )
    return guard, conn
