"""Postgres: a row per lock, functions in the database, and LISTEN/NOTIFY to wake waiters.

::

    backend      the contract: Postgres
      +-- pool         a few connections for short calls
      |     +-- connection   one connection: its target, its calls, its errors; installs schema.sql
      +-- turns        requests to join one lock's queue, one after another
      +-- listener     the session on which a waiting process listens, and which shows the server that it is alive
      +-- doctor       findings about the server

The rules of locks are SQL functions in schema.sql. Each runs in one transaction, so they work behind a transaction
pooler, too.
"""
