"""Every page has an owner here: its words, its sentences, its order, and that it is complete."""

import importlib
import json
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from docs import pages, switch
from tests import ROOT
from tests.docs.snippets import blocks
from tests.docs.text import prose, sentences, words
from tests.harness.child import Child
from tests.test_public_api import MODULES

DOCS = ROOT / "docs"
INDEX = (DOCS / "index.md").read_text("utf-8")
LONGEST = 35
STORE_ORDER = ["What it promises", "Token", "Options", "Failure by failure", "Operating it"]


def toctree(caption: str) -> list[Path]:
    """The pages that are listed under a caption of the sidebar."""
    found = re.search(rf":caption: {caption}\n(?::glob:\n)?\n(.*?)```", INDEX, re.DOTALL)
    assert found, caption
    return [path for entry in found[1].split() for path in sorted(DOCS.glob(f"{entry}.md"))]


def every() -> list[Path]:
    return sorted(DOCS.glob("**/*.md"))


def test_every_page_is_in_the_sidebar() -> None:
    captions = re.findall(r":caption: (.+)", INDEX)
    assert captions[:4] == ["Start", "How-to", "Concepts", "Operate"]
    assert set(captions) >= {"Reference", "Stores", "Comparison", "Lab"}
    listed = [path for caption in captions for path in dict.fromkeys(toctree(caption))]
    assert len(listed) == len(set(listed)), "a page is listed under two captions"
    named = re.findall(r"^[\w/-]+$", INDEX, re.MULTILINE)
    assert [page for page in set(named) if named.count(page) > 1] == [], "listed twice"
    lost = set(every()) - set(listed) - {DOCS / "index.md"} - set(DOCS.glob("decisions/*.md"))
    assert lost == set(), "name it in a toctree of docs/index.md"


@pytest.mark.parametrize("page", [*toctree("Start"), *toctree("How-to")], ids=lambda page: page.stem)
def test_its_sentences_are_short(page: Path) -> None:
    long = [f"{words(each)} words: {each}" for each in sentences(page) if words(each) > LONGEST]
    assert not long, "\n".join(long)


def test_a_long_sentence_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Short one. " + "word " * 36 + "end. And `a b c d` again.\n\n```text\n" + "code " * 50 + "\n```\n")
    assert [words(each) for each in sentences(page)] == [2, 37, 3]


def test_the_pages_are_spelt_right() -> None:
    texts = [path for path in every() if path != DOCS / "lab" / "report.md"]
    texts += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
    allowed = "convertor,convertors,keep-alives"
    command = [sys.executable, "-m", "codespell_lib", "-L", allowed, *map(str, texts)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "")


@pytest.mark.parametrize("store", pages.STORES)
def test_the_stores_have_one_order(store: str) -> None:
    text = (DOCS / f"{store}.md").read_text("utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == STORE_ORDER


@pytest.mark.parametrize("store", pages.STORES)
def test_a_store_s_page_has_every_option_that_its_url_takes_and_no_other(store: str) -> None:
    takes = set().union(*(pages.known_options(scheme) for scheme in pages.STORES[store]))
    shown = {name for names, _, _ in pages.option_rows(store) for name in re.findall(r"`(\w+)`", names)}
    assert shown == takes


def test_every_store_of_the_registry_has_a_page() -> None:
    from fencepost.registry import SCHEMES

    stores = {registered.store for registered in SCHEMES.values()} - {"memory"}
    assert stores == set(pages.STORES)
    assert [path.stem for path in toctree("Stores")] == ["backends", *pages.STORES]


def test_every_alert_has_a_section_of_the_runbook_and_links_to_it() -> None:
    sections = re.findall(r"^## (\w+)$", (DOCS / "operate" / "runbook.md").read_text("utf-8"), re.MULTILINE)
    alerts = pages.alerts()
    assert sections == [rule["alert"] for rule in alerts]
    for rule in alerts:
        assert rule["annotations"]["runbook"] == f"docs/operate/runbook.md#{rule['alert'].lower()}"


@pytest.mark.parametrize("alert", [rule["alert"] for rule in pages.alerts()])
def test_a_section_of_the_runbook_says_what_it_means_and_what_to_do(alert: str) -> None:
    text = (DOCS / "operate" / "runbook.md").read_text("utf-8")
    section = text.split(f"\n## {alert}\n")[1].split("\n## ")[0]
    assert "**Means**:" in section
    assert "**Data**:" in section
    assert re.search(r"^1\. ", section, re.MULTILINE)


def test_the_api_reference_has_every_public_module() -> None:
    assert sorted(pages.API) == sorted(MODULES)


def test_the_command_line_s_reference_has_every_command() -> None:
    from fencepost.cli.app import COMMANDS
    from fencepost.cli.loader import LAB

    text = pages.cli()
    for name in [*COMMANDS, *LAB]:
        assert re.search(rf"^##+ `fencepost {name}`$", text, re.MULTILINE), name
    assert "| `--no-wait` |" in text


def test_the_references_are_complete() -> None:
    from typing import get_args

    from fencepost.cli.exits import CODES
    from fencepost.events import Kind
    from fencepost.hooks.instruments import INSTRUMENTS

    assert set(re.findall(r"^\| `(\w+)` \|", pages.events(), re.MULTILINE)) == set(get_args(Kind))
    assert set(re.findall(r"^\| `(\w+)` \|", pages.metrics(), re.MULTILINE)) == set(INSTRUMENTS)
    assert {str(code) for code, _ in CODES.values()} <= set(re.findall(r"^\| (\d+) \|", pages.exits(), re.MULTILINE))
    assert "### `PUT /r/{key}`" in pages.http()
    assert "| `acquired` |" in pages.history()


def test_every_message_of_the_troubleshooting_page_is_one_that_the_program_says() -> None:
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    quoted = re.findall(
        r'^### "(.+)"$|^\| "(.+?)" \|', (DOCS / "operate" / "troubleshooting.md").read_text("utf-8"), re.MULTILINE
    )
    messages = [part.strip() for pair in quoted for text in pair if text for part in text.split("...")]
    assert len(messages) > 20
    assert [each for each in messages if each and each not in joined] == []


def test_every_error_is_in_the_troubleshooting_page() -> None:
    errors = importlib.import_module("fencepost.errors")
    text = (DOCS / "operate" / "troubleshooting.md").read_text("utf-8")
    assert {name for name in errors.__all__ if f"`{name}`" not in text} == {"BackendError", "Refused"}


def test_links_out_of_the_documents_lead_to_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_REPOSITORY", "https://example.org/it/")
    text = "[a](../Makefile) [b](../README.md) [c](redis.md#token) [d](../CONTRIBUTING.md)"
    assert pages.text_of("page", f"{text}\n\n```text\n[e](../x)\n```\n") == (
        "[a](https://example.org/it/blob/main/Makefile) [b](/index.md) [c](/redis.md#token) "
        "[d](/project/contributing.md)\n\n```text\n[e](../x)\n```\n"
    )


def test_the_repository_is_the_source_of_the_project_and_may_be_missing(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    found = []
    for urls in (
        "",
        '[project.urls]\nSource = "https://example.org/it/"',
        '[project.urls]\nHome = "https://example.org"',
    ):
        project.write_text(f'[project]\nname = "it"\n{urls}\n')
        found.append(pages.declared(project))
    assert found == ["", "https://example.org/it", ""]


def test_each_released_version_has_a_date_in_the_changelog(tmp_path: Path) -> None:
    released = {each["version"]: each["date"] for each in json.loads(switch.RELEASES.read_text("utf-8"))}
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert {version: day for version, day in released.items() if f"## [{version}] - {day}" not in changes} == {}
    listed = tmp_path / "releases.json"
    listed.write_text("[]\n")
    switch.release("0.1.0", date(2026, 1, 1), listed)
    before = listed.read_text()
    for wrong in ("0.1.0", "v0.2.0", "../0.2.0", "dev", ""):
        with pytest.raises(switch.Refused):
            switch.release(wrong, date(2026, 1, 2), listed)
    assert listed.read_text() == before
    with pytest.raises(switch.Refused, match="make docs"):
        switch.publish(tmp_path / "published", "0.1.0", tmp_path, ["0.1.0"])
    assert not (tmp_path / "published").exists()


def test_without_a_repository_such_a_link_is_its_words_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FENCEPOST_REPOSITORY", raising=False)
    monkeypatch.setattr(pages, "declared", lambda _: "")
    assert pages.text_of("page", "see [`a`](../Makefile), [b](redis.md)") == "see `a`, [b](/redis.md)"


def test_what_people_deploy_comes_with_the_site_and_a_story_opens_the_simulator() -> None:
    assert pages.text_of("book/page", "[a](../../deploy/compose.yaml)") == "[a](path:/../deploy/compose.yaml)"
    played = pages.text_of("book/page", "[play `it`](../sim.md#story=gc-pause)")
    assert played == '<a href="../sim/index.html#story=gc-pause&amp;v=0">play <code>it</code></a>'


README = ROOT / "README.md"


def test_the_readme_has_one_order_and_is_short() -> None:
    text = README.read_text("utf-8")
    assert len(text.splitlines()) < 120
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "Install",
        "The example",
        "Why the lock alone is not enough",
        "The refused write",
        "Stores and frameworks",
        "What it does not do",
        "Commands",
        "More",
    ]


def test_the_readme_s_program_runs_twice_in_a_row(tmp_path: Path) -> None:
    program = "".join(block.code for block in blocks(README) if block.language == "python")
    (tmp_path / "program.py").write_text(program)
    for _ in range(2):
        with Child.python("program.py", cwd=tmp_path, env={"XDG_STATE_HOME": str(tmp_path)}) as run:
            run.succeed()
        assert "stale fencing token for 'account/42'" in "".join(run.output)


def test_no_page_is_empty() -> None:
    assert [
        path for path in every() if len(prose(path)) < 100 and "<!-- generated" not in path.read_text("utf-8")
    ] == []
