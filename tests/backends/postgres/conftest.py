"""What tests of Postgres share. Those that need the server otherwise have a ``server`` of their own."""

import secrets
from collections.abc import Iterator

import pytest

from fencepost.backends.postgres.listener import Listener
from fencepost_lab.servers import Postgres
from tests.harness.servers import running


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running(Postgres()) as started:
        yield started


@pytest.fixture
def name() -> str:
    return f"lock-{secrets.token_hex(4)}"


@pytest.fixture
def news(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The holders that a listener is told of, as it hears them."""
    told: list[str] = []
    hear = Listener._heard

    def note_and_hear(listener: Listener, said: str) -> None:
        told.append(said.split()[0])
        hear(listener, said)

    monkeypatch.setattr(Listener, "_heard", note_and_hear)
    return told
