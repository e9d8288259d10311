"""Every page on a phone and on a desktop: `make docs` runs this; the tests look at one page of each kind."""

from pathlib import Path

import pytest

from tests.docs.built_site import too_wide
from tests.docs.site import pages
from tests.sim.browser import Browser


@pytest.mark.parametrize("width", [360, 1280])
def test_no_page_scrolls_sideways(browser: Browser, site: Path, site_url: str, width: int) -> None:
    browser.looks(width, 800)
    found = {}
    for page in sorted(path.relative_to(site).as_posix() for path in pages(site)):
        browser.open(site_url + page)
        found[page] = too_wide(browser, width)
    assert len(found) > 70
    assert {page: faults for page, faults in found.items() if faults} == {}
