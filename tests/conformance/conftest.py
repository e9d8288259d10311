"""The matrix: every test that asks for ``store`` runs on every backend, through both faces."""

import pytest

from fencepost import election, locks
from tests.conformance.backends import BACKENDS
from tests.conformance.faces import FACES
from tests.conformance.store import Store
from tests.harness.stores import NO_SERVER, no_servers
from tests.harness.waiting import PATIENCE

MARKS = {
    "fair": "only where the backend promises to serve live waiters in the order they came",
    "processes": "only where several processes can share a lock",
    "shared": "only where locks can be shared",
    "core": "only on memory://, for what no backend has a part in",
    "only(face)": "only through this face",
}


def pytest_configure(config: pytest.Config) -> None:
    for mark, meaning in MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {meaning}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" not in metafunc.fixturenames:
        return
    marked = {mark.name: mark.args for mark in metafunc.definition.iter_markers()}
    matrix = [
        pytest.param((row, face), id=f"{row.label}-{face}")
        for row in BACKENDS
        if row.scheme in NO_SERVER or not no_servers()
        if row.promises.fair or "fair" not in marked
        if row.promises.reach != "one process" or "processes" not in marked
        if row.promises.shared or "shared" not in marked
        if row.scheme == "memory" or "core" not in marked
        for face in marked.get("only", FACES)
    ]
    metafunc.parametrize("store", matrix, indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    row, face = request.param
    return Store(face, row.url(request.getfixturevalue), row.promises)


@pytest.fixture(autouse=True)
def unhurried_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiters leave their queues in the end: closing stops waiting for them after two seconds of silence."""
    for module in (locks, election):
        monkeypatch.setattr(module, "PARTING", PATIENCE)
