"""The lab's results and their report, and what its command line says to mistakes."""

from __future__ import annotations

import functools
import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.errors import ConfigError
from fencepost_lab.contend.bench import able
from fencepost_lab.experiments import Experiment, Settings, experiments, fitting, report, runs
from fencepost_lab.experiments.context import Context
from fencepost_lab.history.kept import verify
from fencepost_lab.report import plots
from fencepost_lab.report.outcome import Outcome, Plot, Table
from fencepost_lab.servers import EtcdCluster, Postgres, Redis, stores
from fencepost_lab.servers.stores import Store
from tests.lab.command import lab, lab_here, needs
from tests.sim.browser import Browser

if TYPE_CHECKING:
    from matplotlib.axes import Axes

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parent.parent.parent / "docs" / "lab"


@functools.cache  # many tests need one, and drawing it takes longer than all else that they do
def drawn(name: str) -> Plot:
    def paint(axes: Axes) -> None:
        axes.plot([1, 2, 3], [2, 1, 3], label="redis")

    return plots.draw(name, f"a <line> of {name}", paint)


class Sample(Experiment):
    """An experiment whose answer is known."""

    def run(self, settings: Settings, context: Context) -> Outcome:
        if settings["breaks"] == "politely":
            context.store("sqlite://nowhere/at/all?no=such")
        if settings["breaks"]:
            raise ZeroDivisionError("by mistake")
        if settings.get("store"):
            context.store("sqlite")
        outcome = Outcome(figures={"ratio": 2.0}, plots=[drawn("one"), drawn("two")])
        outcome.claim("a | b", settings["held"], "2.0 < 3")
        outcome.tables.append(Table("rows", ("store", "ratio"), [("redis", 1.23456789), ("<b>", 2)], note="read them"))
        outcome.slo["safe-release"] = "0 of 5"
        return outcome


def sample(name: str = "pause", number: int = 1, *, breaks: str = "", held: bool = True) -> Experiment:
    settings = {"breaks": breaks, "held": held}
    return Sample(number, name, "What if?", "Nothing.", "Two of them.", "A lot.", settings, {"extra": 1})


def test_a_result_says_how_it_came_about(tmp_path: Path) -> None:
    result = runs.run(sample(), quick=True, out=tmp_path)
    assert result["ok"]
    assert result["command"] == "fencepost lab run pause --quick"
    assert {"python", "fencepost"} <= set(result["versions"])
    assert result["machine"]["cpus"]
    assert (tmp_path / "pause-one.svg").read_text("utf-8").startswith("<svg")
    assert json.loads((tmp_path / "pause.json").read_text("utf-8")) == result


def test_a_result_names_the_commit_of_its_code(tmp_path: Path) -> None:
    code = tmp_path / "lab" / "src" / "code.py"
    code.parent.mkdir(parents=True)
    code.write_text("1\n")
    assert runs.commit(code) == "", "no clone"

    def git(*words: str) -> str:
        who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    assert runs.commit(code) == "", "a clone of something else"
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    (tmp_path / "result.json").write_text("{}")
    first = git("rev-parse", "--short=12", "HEAD").strip()
    assert runs.commit(code) == first
    code.write_text("2\n")
    assert runs.commit(code) == f"{first} and changes"


@pytest.mark.parametrize(("breaks", "why"), [("politely", "sqlite://"), ("badly", "ZeroDivisionError: by mistake")])
def test_an_experiment_that_breaks_off_is_a_claim_that_did_not_hold(tmp_path: Path, breaks: str, why: str) -> None:
    result = runs.run(sample(breaks=breaks), out=tmp_path)
    assert not result["ok"]
    assert why in result["claims"][0]["evidence"]


def test_each_figure_carries_the_settings_that_matter(tmp_path: Path) -> None:
    experiment = sample()
    experiment.full["store"] = True
    result = runs.run(experiment, out=tmp_path)
    kept = f"SQLite {sqlite3.sqlite_version}, WAL, synchronous=NORMAL, FULL for tokens"
    assert result["stores"] == {"sqlite": kept}
    assert all(plot["caption"].endswith(f"({kept})") for plot in result["plots"])
    assert f"Stores: {kept}." in report.markdown([result])
    servers: list[Any] = [EtcdCluster(fsync=True), Postgres(), Redis(), Redis(args=["--appendonly", "yes"])]
    assert [each.durability for each in servers] == [
        "3 members, fsync on",
        "fsync off",
        "no append-only file, so no fsync",
        "append-only file, fsync everysec",
    ]
    given = [Store("redis", "redis://127.0.0.1:1"), Store("etcd", "etcd://127.0.0.1:1")]
    assert runs.conditions(drawn("waits-etcd"), given) == "etcd as it was found at the address given"
    assert runs.conditions(drawn("order"), given).count("as it was found") == 2


def test_the_lab_compares_stores_that_sync() -> None:
    started: list[Any] = [stores.SERVERS[name]() for name in ("etcd", "zookeeper", "consul", "postgres")]
    assert all("fsync on" in each.durability for each in started)


def test_a_peer_that_is_missing_is_an_error_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aetcd", None)  # as if it were not installed
    done = lab_here("run", "contention", "--out", str(tmp_path / "runs"))
    assert (done.code, list(tmp_path.iterdir())) == (2, [])
    assert "'aetcd'" in done.said
    assert "pip install 'fencepost-lab[peers]'" in done.said
    with pytest.raises(ConfigError, match="aetcd"):
        able(Store("etcd", "etcd://127.0.0.1:1"), ["aetcd"])
    assert able(Store("redis", "redis://127.0.0.1:1"), ["aetcd"]) == ["fencepost"]  # it does not reach Redis


def test_an_experiment_that_claims_nothing_has_not_succeeded() -> None:
    assert not Outcome().ok


def test_a_password_in_a_url_is_not_kept(tmp_path: Path) -> None:
    experiment = sample()
    experiment.full["backends"] = ["redis"]
    runs.run(experiment, backends=["redis://me:secret@127.0.0.1:1/0"], out=tmp_path)
    assert "secret" not in (tmp_path / "pause.json").read_text("utf-8")


def test_the_same_figures_give_the_same_plot() -> None:
    assert drawn("x").svg == drawn("x").svg


def written(folder: Path) -> tuple[str, str]:
    runs.run(sample("pause", 1), out=folder)
    runs.run(sample("release", 3, held=False), out=folder)
    markdown, page = report.write(folder, folder / "report")
    assert {path.name for path in (folder / "report").iterdir()} == {
        *("report.md", "report.html", "pause.json", "release.json"),
        *("pause-one.svg", "pause-two.svg", "release-one.svg", "release-two.svg"),
    }
    return markdown.read_text("utf-8"), page.read_text("utf-8")


def test_the_report_has_every_figure_with_its_command(tmp_path: Path) -> None:
    text, page = written(tmp_path)
    for said in ("fencepost lab run pause", "fencepost lab run release", "What if?", "2.0 &lt; 3", "1.235", "0 of 5"):
        assert said in page
    assert "1 of 2 claims held" in text
    assert "NOT as claimed" in page
    assert "not measured yet" in text
    for name in ("pause-one.svg", "pause-two.svg", "release-one.svg"):
        assert f"]({name})" in text


def test_the_first_table_has_each_question_beside_its_answer() -> None:
    results = report.load(DOCS)
    overview = report.markdown(results).partition("## Service levels")[0]
    assert "| question | what it claims |" in overview
    for result in results:
        assert f"| {result['question']} | {result['claim']} |" in overview


def test_the_committed_report_is_what_the_committed_results_give(tmp_path: Path) -> None:
    for path in report.write(DOCS, tmp_path):
        assert path.read_text("utf-8") == (DOCS / path.name).read_text("utf-8"), (
            f"{path.name} is older than its results or its code; run 'fencepost lab report --from docs/lab'"
        )


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "", "a/b", 7, None])
@pytest.mark.parametrize("where", ["experiment", "plot"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path, where: str, name: object) -> None:
    folder = tmp_path / "a" / "b"
    result = runs.run(sample(), out=folder)
    if where == "experiment":
        result["experiment"] = name
    else:
        result["plots"][0]["name"] = name
    (folder / "pause.json").write_text(json.dumps(result))
    with pytest.raises(ConfigError, match="none of the lab's"):
        report.write(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        "<SCRIPT >alert(1)</SCRIPT>",
        '<path onload="alert(1)"/>',
        '<path/onload="alert(1)"/>',
        '<use href="http://127.0.0.1/x.svg#a"/>',
        "<use xlink:href='javascript:alert(1)'/>",
        "<foreignObject><img src=x onerror=alert(1)></foreignObject>",
        "<style>@import 'http://127.0.0.1/x.css'</style>",
        "<!-- --><image/>",
    ],
)
def test_a_picture_that_is_no_drawing_is_refused(tmp_path: Path, inside: str) -> None:
    runs.run(sample(), out=tmp_path)
    picture = tmp_path / "pause-one.svg"
    assert plots.is_drawing(picture.read_text("utf-8"))
    picture.write_text(picture.read_text("utf-8").replace("</svg>", f"{inside}</svg>"))
    with pytest.raises(ConfigError, match="no drawing of the lab's"):
        report.write(tmp_path, tmp_path / "out")


def test_the_drawings_of_the_docs_are_drawings() -> None:
    assert all(plots.is_drawing(path.read_text("utf-8")) for path in DOCS.glob("*.svg"))


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    _, page = written(tmp_path)
    assert page.count("<svg ") == 4
    assert not re.findall(r'(?:src|href)="(?!#|\w+\.json")[^"]*"', page)
    assert not re.search(r"@import|url\((?!#)", page)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert all(anchor in ids for anchor in re.findall(r'<a href="#([^"]*)"', page))
    assert "<b>" not in page


@pytest.mark.browser
def test_the_page_fits_a_phone_and_a_dark_room(tmp_path: Path) -> None:
    needs("CHROMEDRIVER")
    written(tmp_path)
    with Browser() as browser:
        browser.looks(390, 844, prefers_color_scheme="dark")
        browser.open(f"file://{tmp_path}/report/report.html")
        assert browser.run("return document.documentElement.scrollWidth") == 390
        paper, ink = browser.run(
            "const shown = getComputedStyle(document.body);"
            "const text = getComputedStyle(document.querySelector('svg.plot text'));"
            "return [shown.backgroundColor, text.fill]"
        )
        light = [sum(map(int, re.findall(r"\d+", colour))) for colour in (paper, ink)]
        assert light[0] < 200 < 500 < light[1]


@pytest.mark.browser
def test_no_column_of_the_committed_report_is_cut_off_on_paper() -> None:
    needs("CHROMEDRIVER")
    with Browser() as browser:
        browser.looks(718, 1000, media="print")  # A4 between the browser's own margins
        browser.open(f"file://{DOCS}/report.html")
        parts = "[...document.querySelectorAll('.wide, svg.plot, pre')]"
        assert browser.run(f"return {parts}.length") > 100
        cut = f"return {parts}.filter((each) => each.scrollWidth > 718).map((each) => each.innerText)"
        assert browser.run(cut) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("run paus", "did you mean 'pause'?"),
        ("run nothing-like-it", "there are pause, "),
        ("run pause --backend redi", "name one of sqlite, redis"),
        ("run pause --backend redi://x", "did you mean 'redis://'?"),
        (
            "run keyspace --backend redis",
            "it fills Redis and etcd with keys, and counts all their memory; run it without",
        ),
        ("run release --backend etcd", "is about redis; give --backend the name or URL of one"),
        ("run pause --backend redis --backend rediss://x", "are both redis; run one after the other"),
        ("run pause --backend sqlite --out /dev/null/x", "choose another --out"),
        ("report --from /dev/null/x", "fencepost lab run all"),
    ],
)
def test_a_mistake_is_named_with_the_next_step(words: str, complaint: str) -> None:
    run = lab if "--out" in words else lab_here  # the first gets far enough to change how SIGTERM ends it
    done = run(*words.split())
    assert done.code == 2
    assert complaint in done.said


def test_all_with_addresses_leaves_out_those_that_need_servers_of_their_own() -> None:
    fit, left = fitting(["all"], ["rediss://127.0.0.1:1", "postgres"])
    assert set(left) == {"redlock", "keyspace", "drift", "counters", "fleet"}
    assert all("starts servers of its own: " in why for why in left.values())
    settings = {each.name: each.settings(backends=["rediss://127.0.0.1:1", "postgres"])["backends"] for each in fit}
    assert settings["release"] == ["rediss://127.0.0.1:1"]
    assert len({*left, *settings}) == len(experiments())
    assert "release" in fitting(["all"], ["etcd"])[1]
    described = (DOCS.parent / "lab.md").read_text("utf-8").partition("start servers of their own")[2]
    assert all(f"`{name}`" in described.partition("Exit code")[0] for name in left)


def test_the_list_names_every_experiment() -> None:
    listed = lab_here("list", "--json").facts
    assert [each["name"] for each in listed][:1] == ["pause"]
    assert all(each["question"] and each["claim"] for each in listed)
    described = (DOCS.parent / "lab.md").read_text("utf-8")
    assert all(f"| {each['number']} | `{each['name']}` |" in described for each in listed)


def test_results_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "pause.json").write_text("{", "utf-8")
    with pytest.raises(ConfigError, match=r"pause\.json"):
        report.load(tmp_path)
    for history in ("pause-redis-off.jsonl", {"file": "../../secret.jsonl.gz"}):
        result = {"experiment": "pause", "number": 1, "claims": [], "plots": [], "histories": [history]}
        (tmp_path / "pause.json").write_text(json.dumps(result), "utf-8")
        with pytest.raises(ConfigError, match=r"pause\.json.*run the experiment again"):
            report.load(tmp_path)
        with pytest.raises(ConfigError, match=r"pause\.json.*as a result of the lab"):
            list(verify([tmp_path]))


def test_the_committed_histories_show_what_the_report_says_of_them() -> None:
    checked = list(verify([DOCS]))
    assert [f"{each.path.name}: {each.verdict}" for each in checked if each.verdict != "as reported"] == []
    assert {each.report.verdict for each in checked if each.report} >= {"kept", "broken"}
    fenced = [each for each in checked if each.path.name.endswith("-on.jsonl.gz")]
    assert fenced
    assert all(each.report and each.report.ok for each in fenced)
    assert sum(each.path.stat().st_size for each in checked) < 4_000_000


def test_every_figure_of_the_committed_report_carries_its_command() -> None:
    results = report.load(DOCS) if (DOCS / "report.md").exists() else []
    text = (DOCS / "report.md").read_text("utf-8") if results else ""
    known = set()
    for result in results:
        assert result["command"].startswith(f"fencepost lab run {result['experiment']}")
        assert result["command"] in text
        assert result["ok"], f"{result['experiment']} was committed although it is not as claimed"
        assert result["plots"], f"{result['experiment']} has no picture"
        known |= {report.picture(result, plot) for plot in result["plots"]}
    assert {path.name for path in DOCS.glob("*.svg")} == known
