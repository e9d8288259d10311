"""What operators load, held against what the programs really serve: alert rules, dashboard, metrics."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from fencepost.hooks.instruments import INSTRUMENTS
from fencepost.resource.state import FAMILIES
from fencepost.rule import Stamp
from fencepost_lab.servers import http_json
from fencepost_lab.servers.processes import Missing, program
from fencepost_lab.servers.server import Server
from tests import ROOT
from tests.harness.resource import Service
from tests.harness.servers import running, unavailable
from tests.harness.waiting import until
from tests.lab.worker import WorkerProcess

RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
CASES = ROOT / "deploy" / "prometheus" / "rules_test.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "fencepost.json"
METRIC = re.compile(r"\b([a-z][a-z0-9_]*)(?=[{\[])")


def promtool(*args: str, text: str | None = None) -> str:
    """What promtool prints; the test fails if it finds fault."""
    try:
        tool = program("PROMTOOL")
    except Missing as missing:
        unavailable(str(missing))
    done = subprocess.run([tool, *args], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


@pytest.fixture(scope="module")
def resource_page(service: Service) -> str:
    """The metrics of a resource that has admitted and refused."""
    service.put("thing", b"1", Stamp(5, 1, "ann"))
    service.put("thing", b"2", Stamp(4, 1, "old"))
    return service.ask("GET", "/metrics").body.decode()


@pytest.fixture(scope="module")
def worker_page(service: Service, resource_page: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The metrics of a worker that has acquired, and not yet released."""
    locks = tmp_path_factory.mktemp("locks") / "locks.sqlite3"
    options = ["--resource", service.url, "--steps", "--metrics", "0", "--backend", f"sqlite://{locks}"]
    with WorkerProcess(*options) as worker:
        url = worker.until("metrics")["url"]
        worker.go("acquire", "read", "write")
        worker.until("accepted")
        with urllib.request.urlopen(url, timeout=60) as answer:
            page: str = answer.read().decode()
            return page


class Prometheus(Server):
    """A Prometheus that scrapes the addresses in `args` every 200 ms, with our rules loaded."""

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def prepare(self) -> None:
        settings = {
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "resource", "static_configs": [{"targets": list(self.args)}]}],
        }
        (self.folder / "prometheus.yml").write_text(json.dumps(settings))

    def command(self) -> list[str]:
        options = {
            "config.file": self.folder / "prometheus.yml",
            "storage.tsdb.path": self.folder / "data",
            "web.listen-address": self.address,
        }
        return [program("PROMETHEUS"), *(f"--{name}={value}" for name, value in options.items())]

    def ping(self) -> bool:
        return bool(self.ask("/api/v1/status/runtimeinfo")["status"] == "success")

    def ask(self, path: str) -> Any:
        return http_json(self.port, "GET", path)

    def samples(self, query: str) -> float:
        found = self.ask(f"/api/v1/query?query={quote(query)}")["data"]["result"]
        return sum(float(each["value"][1]) for each in found)

    def firing(self) -> set[str]:
        alerts = self.ask("/api/v1/alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def names(page: str) -> set[str]:
    """The samples a scrape of this page stores."""
    return {re.split(r"[{ ]", line)[0] for line in page.splitlines() if line and not line.startswith("#")}


@pytest.mark.server
def test_promtool_finds_no_fault_with_what_is_really_served(resource_page: str, worker_page: str) -> None:
    assert 'fencepost_fencing_reject_total{verdict="stale"} 1.0' in resource_page
    assert "fencepost_lock_acquire_success_total 1.0" in worker_page
    for page in (resource_page, worker_page):
        assert promtool("check", "metrics", text=page) == ""


def test_both_halves_serve_every_instrument_and_no_other_label(resource_page: str, worker_page: str) -> None:
    for page in (resource_page, worker_page):
        families = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
        assert {f"fencepost_{name}" for name in INSTRUMENTS} <= families
        labels = set(re.findall(r'([a-z_]+)="', page))
        assert labels <= {"le", "verdict", "result", "method", "code", "mode", "thread", "limit"}


@pytest.mark.server
def test_a_real_prometheus_raises_the_alarm_about_a_clash_and_a_write_without_a_token() -> None:
    with Service() as service, running(Prometheus(args=[service.address])) as prometheus:
        service.put("thing", b"1", Stamp(5, 1, "ann"))
        scraped = 'count_over_time(fencepost_fencing_reject_total{verdict="clash"}[1m])'
        until(lambda: prometheus.samples(scraped) >= 3, "three scrapes")
        assert prometheus.firing() == set()
        assert service.put("thing", b"2", Stamp(5, 1, "bob")).headers["X-Fence-Verdict"] == "clash"
        assert service.ask("PUT", "/r/thing", b"3").status == 428
        alarms = {"FencingTokenClash", "CriticalWriteWithoutToken"}
        until(lambda: prometheus.firing() == alarms, f"the alarms {alarms}")


@pytest.mark.server
def test_every_alert_is_valid_and_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(CASES))
    alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    assert len(alerts) >= 10
    cases = re.findall(r"alertname: (\w+)\n\s+exp_alerts:( \[\])?", CASES.read_text())
    fires = {name for name, nothing in cases if not nothing}
    quiet = {name for name, nothing in cases if nothing}
    assert fires == alerts
    assert quiet == alerts


@pytest.mark.parametrize("document", [RULES, DASHBOARD], ids=lambda path: path.name)
def test_every_metric_a_rule_or_panel_asks_for_is_really_served(
    document: Path, resource_page: str, worker_page: str
) -> None:
    if document is DASHBOARD:
        panels = json.loads(document.read_text())["panels"]
        queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
        assert len({panel["id"] for panel in panels}) == len(panels)
    else:
        queries = re.findall(r"expr: (.*?)(?=\n\s+(?:for|labels):)", document.read_text(), re.DOTALL)
    asked = {name for query in queries for name in METRIC.findall(query)}
    assert len(asked) >= 10
    assert asked <= names(resource_page) & names(worker_page)


def test_the_documentation_lists_every_instrument_with_its_own_words() -> None:
    rows = re.findall(r"^\| `(\w+)(?:\{\w+\})?` \| (.*?) \|$", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    texts = {name: instrument.text for name, instrument in INSTRUMENTS.items()} | FAMILIES
    assert dict(rows) == {f"fencepost_{name}": text for name, text in texts.items()}


@pytest.mark.server
def test_the_dashboard_s_queries_are_queries() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    plain = [re.sub(r"\$__(range|rate_interval)", "5m", query) for query in queries]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(plain)]
    document = json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})
    assert f"{len(queries)} rules found" in promtool("check", "rules", "/dev/stdin", text=document)
