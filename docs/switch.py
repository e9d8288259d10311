"""Which versions of the documents there are, for the switch in the sidebar of each page.

``releases.json`` is the list of releases, newest first: ``[{"version": "0.1.0", "date": "2026-11-17"}]``. The release
steps write it (``scripts/site release``). A published folder has a folder for each version, and one for the development
version, ``dev``. Each of them has its own ``_static/versions.js``: a script, because a page that is opened as a file
may not fetch JSON. It says which version this is, which others there are, and which pages each of them has.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
RELEASES = DOCS / "releases.json"
DEVELOPMENT = "dev"

_VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_SCRIPT = Path("_static") / "versions.js"


class Refused(Exception):
    """What was asked for makes no sense; the message says what to do. Nothing was changed."""


def releases(path: Path = RELEASES) -> list[str]:
    """The versions that were released, newest first."""
    return [str(each["version"]) for each in json.loads(path.read_text("utf-8"))]


def release(version: str, on: date, path: Path = RELEASES) -> None:
    """Put a version in front of the list of releases."""
    if not _VERSION.fullmatch(version):
        raise Refused(f"{version!r} is no version such as 0.1.0")
    listed = json.loads(path.read_text("utf-8"))
    if version in (each["version"] for each in listed):
        raise Refused(f"{version} is in {path.name} already: a version is released once")
    lines = [json.dumps(each) for each in [{"version": version, "date": on.isoformat()}, *listed]]
    path.write_text("[\n  " + ",\n  ".join(lines) + "\n]\n", "utf-8")


def script(current: str, versions: Iterable[dict[str, Any]]) -> str:
    """What ``_static/versions.js`` says."""
    return f"window.fencepostVersions = {json.dumps({'current': current, 'versions': list(versions)})};\n"


def alone() -> str:
    """The script of a build that stands by itself, such as that of ``make docs``."""
    return script(DEVELOPMENT, [{"name": DEVELOPMENT, "pages": []}])


def publish(folder: Path, name: str, built: Path, released: list[str]) -> list[str]:
    """Put a built site into ``folder`` as the version ``name``, and let all versions know; the versions there."""
    if name != DEVELOPMENT and name not in released:
        raise Refused(f"{name!r} is neither {DEVELOPMENT!r} nor in {RELEASES.name}: scripts/site release {name}")
    if not (built / _SCRIPT).is_file():
        raise Refused(f"{built} is no built site: run make docs")
    if folder.exists() and any(folder.iterdir()) and not (folder / "index.html").is_file():
        raise Refused(f"{folder} has other files in it, and no site: name a folder for the versions alone")
    new, place = folder / f".{name}.new", folder / name
    if new.exists():
        shutil.rmtree(new)  # of a run that was interrupted
    shutil.copytree(built, new)
    if place.exists():
        shutil.rmtree(place)
    new.rename(place)
    there = [each for each in (DEVELOPMENT, *released) if (folder / each / _SCRIPT).is_file()]
    versions = [{"name": each, "pages": _pages(folder / each)} for each in there]
    for each in there:
        (folder / each / _SCRIPT).write_text(script(each, versions), "utf-8")
    newest = next((each for each in there if each != DEVELOPMENT), DEVELOPMENT)
    (folder / "index.html").write_text(_REDIRECT.format(newest=newest), "utf-8")
    return there


def _pages(site: Path) -> list[str]:
    """The pages of a version, as the switch names them."""
    pages = (path.relative_to(site) for path in site.rglob("*.html"))
    return sorted(page.with_suffix("").as_posix() for page in pages if page.parts[0] not in ("sim", "_static"))


_REDIRECT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>fencepost</title>
<link rel="icon" href="{newest}/_static/favicon.svg">
<meta http-equiv="refresh" content="0; url={newest}/index.html">
<p><a href="{newest}/index.html">The documents of fencepost</a></p>
</html>
"""
