"""One Chromium and one page for all tests of a process."""

from collections.abc import Iterator

import pytest

from fencepost_lab.servers.processes import Missing
from fencepost_lab.sim.serve import server
from tests.harness.servers import unavailable
from tests.sim.browser import Browser, serving


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    try:
        with Browser() as started:
            yield started
    except Missing as missing:
        unavailable(str(missing))


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser as a person finds it; afterwards its console must have stayed silent."""
    yield chromium
    chromium.plain()
    assert chromium.complaints() == []


@pytest.fixture(scope="session")
def page() -> Iterator[str]:
    with serving(server(0)) as url:
        yield url
