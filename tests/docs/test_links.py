"""Every link between the documents leads to a file that is there, and to a heading that it has."""

import re
from pathlib import Path

import pytest

from fencepost_lab.sim.guided import guided
from tests import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("[!.]*/README.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\((?!\w+:)([^)\s]+)\)")


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names by which a page's headings can be linked to, as GitHub makes them; the simulator's page has stories."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    stories = {f"story={story['name']}" for story in guided()} if page == ROOT / "docs" / "sim.md" else set()
    return stories | {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_its_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{link} names a heading that {target.name} has not"


def test_the_links_are_found_at_all() -> None:
    assert LINK.findall("see [the docs](docs/redis.md#tokens) and [that](https://example.org/x)") == [
        "docs/redis.md#tokens"
    ]
    assert sum(len(LINK.findall(prose(page))) for page in PAGES) > 20


def test_the_simulator_s_page_has_a_link_to_each_guided_scenario() -> None:
    links = LINK.findall(prose(ROOT / "docs" / "sim.md"))
    assert [link for link in links if "#story=" in link] == [f"sim.md#story={story['name']}" for story in guided()]
