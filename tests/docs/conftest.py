"""The site, built once for all workers, and the browser that looks at it."""

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fencepost_lab.servers.processes import Missing, program
from tests.docs.site import build
from tests.harness.servers import unavailable
from tests.sim.browser import serving
from tests.sim.conftest import browser as browser
from tests.sim.conftest import chromium as chromium


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    base = tmp_path_factory.getbasetemp()
    return build(base.parent if hasattr(request.config, "workerinput") else base)


class Files(SimpleHTTPRequestHandler):
    """A plain file server, which says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def site_url(site: Path) -> Iterator[str]:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(site)))) as url:
        yield url


@pytest.fixture(scope="session")
def axe() -> str:
    try:
        return Path(program("AXE")).read_text("utf-8")
    except Missing as missing:
        unavailable(str(missing))
