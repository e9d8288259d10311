"""Postgres: a row per lock, functions in the database, and LISTEN/NOTIFY to wake waiters.

::

    backend      the contract: Postgres
      +-- pool         a few connections for short calls
      |     +-- connection   one connection: where it leads, its calls, its errors; installs schema.sql
      +-- listener     the session that a waiting process listens on, and by which the server knows that it lives
      +-- doctor       findings about the server

The lock's rules are SQL functions in schema.sql; they run in one transaction each, also behind a transaction pooler.
"""
