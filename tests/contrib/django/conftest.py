from __future__ import annotations

import secrets

import psycopg
import pytest

from tests.harness.servers import Endpoint


@pytest.fixture
def schema(postgres_server: Endpoint) -> str:
    """A database address with an empty schema of its own."""
    name = f"site_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_server.url, autocommit=True) as conn:
        conn.execute(f"CREATE SCHEMA {name}")
    return f"{postgres_server.url}?options=-csearch_path%3D{name}"
