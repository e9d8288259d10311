"""The session's servers as fixtures, shared by all pytest workers, or taken from FENCEPOST_TEST_<NAME>_URL.

A test that pauses, kills or fills a server starts one of its own. After a failure, the end of each shared server's log
is part of the report.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import pytest

from fencepost_lab.servers import Missing
from fencepost_lab.servers.objects import ObjectStore
from tests.harness import keeper
from tests.harness.child import Child
from tests.harness.complete import complete_run

Started = TypeVar("Started")

ADDRESS = "FENCEPOST_TEST_KEEPER"
_keeper: list[Child] = []
_logs: dict[str, dict[Path, int]] = {}
"""Of each server that this process has asked for, its logs, and how long each was when the test began."""


class Endpoint(Protocol):
    """Something with an address."""

    @property
    def url(self) -> str: ...


@dataclass(frozen=True)
class Given:
    """A server that runs elsewhere: in the keeper, or started by the user."""

    url: str


def unavailable(reason: str) -> NoReturn:
    """Fail where a complete run was promised, skip elsewhere."""
    if complete_run():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@contextlib.contextmanager
def running(server: AbstractContextManager[Started]) -> Iterator[Started]:
    """The server or cluster, started; ``unavailable`` if its program is missing."""
    with contextlib.ExitStack() as stack:
        try:
            started = stack.enter_context(server)
        except Missing as missing:
            unavailable(str(missing))
        yield started


@contextlib.contextmanager
def provided(name: str, server: AbstractContextManager[Endpoint]) -> Iterator[Endpoint]:
    """The address from the environment, else the server, started for this test alone."""
    if url := os.environ.get(f"FENCEPOST_TEST_{name}_URL"):
        yield Given(url)
        return
    with running(server) as started:
        yield started


def shared(name: str) -> Endpoint:
    """The run's server of that name."""
    if url := os.environ.get(f"FENCEPOST_TEST_{name.upper()}_URL"):
        return Given(url)
    answer: dict[str, Any] = keeper.ask(os.environ[ADDRESS], name)
    if "missing" in answer:
        unavailable(answer["missing"])
    if "failed" in answer:
        pytest.fail(f"the server {name!r} did not start:\n{answer['failed']}", pytrace=False)
    _logs.setdefault(name, {}).update({Path(log): 0 for log in answer["logs"]})
    return Given(answer["url"])


@pytest.fixture(scope="session")
def redis_server() -> Endpoint:
    return shared("redis")


@pytest.fixture(scope="session")
def redis_cluster() -> Endpoint:
    return shared("redis_cluster")


@pytest.fixture(scope="session")
def redlock_servers() -> Endpoint:
    return shared("redlock")


@pytest.fixture(scope="session")
def etcd_server() -> Endpoint:
    return shared("etcd")


@pytest.fixture(scope="session")
def etcd_cluster() -> Endpoint:
    if url := os.environ.get("FENCEPOST_TEST_ETCD_URL"):
        return Given(url)
    return shared("etcd_cluster")


@pytest.fixture(scope="session")
def zookeeper_server() -> Endpoint:
    return shared("zookeeper")


@pytest.fixture(scope="session")
def consul_server() -> Endpoint:
    return shared("consul")


@pytest.fixture(scope="session")
def postgres_server() -> Endpoint:
    return shared("postgres")


@pytest.fixture(scope="session")
def pgbouncer_server() -> Endpoint:
    return shared("pgbouncer")


@pytest.fixture(scope="session")
def shared_object_store() -> Endpoint:
    return shared("object_store")


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """One of this worker's own, for tests that set its ``fault``. It costs seconds to import."""
    with ObjectStore() as server:
        yield server


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    # Every Postgres of the run takes it, and libpq finds it, so that URLs can be written without one.
    os.environ.setdefault("PGPASSWORD", secrets.token_urlsafe())
    address = f"fencepost-keeper-{secrets.token_hex(8)}"
    child = Child.python("-m", "tests.harness.keeper", address)
    child.heard("ready")
    os.environ[ADDRESS] = address
    _keeper.append(child)


def pytest_unconfigure() -> None:
    while _keeper:
        child = _keeper.pop()
        child.finish()
        child.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    for logs in _logs.values():
        for log in logs:
            with contextlib.suppress(OSError):
                logs[log] = log.stat().st_size


def _concerned(item: pytest.Item, server: str) -> bool:
    """Whether a test uses a server, by its marks; see ``stores``."""
    store = "postgres" if server == "pgbouncer" else server.partition("_")[0]
    return item.get_closest_marker(store) is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for log, before in [each for name, logs in _logs.items() if _concerned(item, name) for each in logs.items()]:
            with contextlib.suppress(OSError), log.open("rb") as file:
                file.seek(before)
                if said := file.read()[-4000:].decode(errors="replace"):
                    report.sections.append((f"log of {log.parent.name}", said))
    return report
