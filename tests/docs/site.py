"""The built site: made once for all workers of a run, and looked through for links that lead nowhere."""

import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import docs.pages
from tests import ROOT
from tests.harness.child import Child

REPOSITORY = "https://example.org/fencepost"
"""Stands for the address that is not decided yet."""

_ATTRIBUTE = re.compile(r"""\b(id|name|href|src)="([^"]*)\"""")
_SCRIPT = re.compile(r"<(script|style)\b[^>]*>.*?</\1>", re.DOTALL)


def repository() -> str:
    """The address that the site was built with; '' if none is decided."""
    return docs.pages.repository() if given() else REPOSITORY


def given() -> str:
    """The folder that `make docs` has built, '' in other runs."""
    return os.environ.get("FENCEPOST_SITE", "")


def build(shared: Path) -> Path:
    """The site's folder. The first worker that asks builds it, without a warning; $FENCEPOST_SITE names one."""
    if given():
        return Path(given()).resolve()
    folder = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            making = shared / "site.new"
            command = ("-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", shared / "doctrees")
            with Child.python(*command, ROOT / "docs", making, env={"FENCEPOST_REPOSITORY": repository()}) as sphinx:
                sphinx.succeed(250)
            making.rename(folder)
    return folder


@dataclass
class Page:
    """What a page has that others can point at, and what it points at itself."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)


def pages(site: Path) -> dict[Path, Page]:
    """Every page of the site but the simulator's, which is a page of its own."""
    apart = {site / "sim", site / "_static"}
    return {path: _read(path) for path in sorted(site.rglob("*.html")) if not apart & set(path.parents)}


def _read(path: Path) -> Page:
    page = Page()
    for name, value in _ATTRIBUTE.findall(_SCRIPT.sub(_sources, path.read_text("utf-8"))):
        if name in ("id", "name"):
            page.anchors.add(unescape(value))
        else:
            page.links.append(unescape(value))
    return page


def _sources(script: re.Match[str]) -> str:
    """A script's own address stays, its text goes."""
    return script[0].partition(">")[0]


def broken(site: Path) -> Iterator[str]:
    """Each link of the site that leads to no file, or to no such place in it."""
    found = pages(site)
    for path, page in found.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if target.is_dir():
                target /= "index.html"
            if not target.is_relative_to(site) or not target.is_file():
                yield f"{path.relative_to(site)}: {link} leads nowhere"
            elif parts.fragment and target in found and unquote(parts.fragment) not in found[target].anchors:
                yield f"{path.relative_to(site)}: {link} names no place of that page"


def outside(site: Path) -> Iterator[str]:
    """Each address that the browser would load from another host."""
    for path in pages(site):
        text = path.read_text("utf-8")
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text):
            for _, value in re.findall(r'\b(src|href)="((?:https?:)?//[^"]*)"', tag):
                if 'rel="edit"' not in tag and 'rel="canonical"' not in tag:
                    yield f"{path.relative_to(site)}: {value}"
