"""The system of deploy/, run without Docker: its own commands and settings, on the servers that the tests have."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost_lab.servers import http_json
from fencepost_lab.servers.processes import program
from fencepost_lab.servers.server import Server
from tests import ROOT
from tests.deploy import DEPLOY, SECRETS, document, manifests, services
from tests.harness.child import Child
from tests.harness.servers import Endpoint, running
from tests.harness.waiting import until

EXAMPLE = ROOT / "examples" / "counting.py"
SYSTEM = services()


class Prometheus(Server):
    """Prometheus with the settings of deploy/, of which only addresses and paths differ here."""

    settings: Any

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def prepare(self) -> None:
        (self.folder / "prometheus.yml").write_text(json.dumps(self.settings))

    def command(self) -> list[str]:
        replaced = {"--config.file": "prometheus.yml", "--storage.tsdb.path": "data"}
        options = dict(option.split("=") for option in SYSTEM["prometheus"]["command"]) | replaced
        return [program("PROMETHEUS"), f"--web.listen-address={self.address}", *map("=".join, options.items())]

    def ping(self) -> bool:
        return bool(self.ask("status/runtimeinfo")["status"] == "success")

    def ask(self, path: str) -> Any:
        return http_json(self.port, "GET", f"/api/v1/{path}")


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """What make_secrets.py makes, as at the first start."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    assert SYSTEM["secrets"]["entrypoint"] == ["python", "-P", "/make_secrets.py", "/secrets"]
    make = [sys.executable, "-P", str(DEPLOY / "make_secrets.py"), str(folder)]
    subprocess.run(make, check=True)
    before = {path.name: path.read_text() for path in folder.iterdir()}
    assert set(before) == SECRETS
    assert {path.name for path in folder.iterdir() if path.stat().st_mode & 0o077} == {
        *("postgres", "prometheus", "grafana"),
    }
    subprocess.run(make, check=True)  # the next start changes nothing
    assert {path.name: path.read_text() for path in folder.iterdir()} == before
    return folder


def named(kind: str, name: str) -> Any:
    """The pod of an object of deploy/kubernetes: its only container."""
    (found,) = [each["spec"] for _, each in manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    (container,) = found.get("jobTemplate", {"spec": found})["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.experiment
def test_workers_count_a_leader_leads_a_skipped_job_succeeds_and_prometheus_sees_it_all(
    redis_server: Endpoint, etcd_server: Endpoint, postgres_server: Endpoint, secrets: Path, tmp_path: Path
) -> None:
    login, _, database = postgres_server.url.partition("@")
    pgpass = secrets / "pgpass"
    pgpass.write_text(re.sub(r"[^:]*$", login.rpartition(":")[2], pgpass.read_text()))
    here = {
        "postgresql://postgres@postgres/postgres": f"postgresql://postgres@{database}",
        "redis://redis:6379/0": redis_server.url,
        "etcd://etcd-1:2379,etcd-2:2379,etcd-3:2379": etcd_server.url,
        "/etc/prometheus/": f"{DEPLOY}/prometheus/",
        "/secrets/": f"{secrets}/",
    }

    def local(value: Any) -> Any:
        """The settings with the addresses and paths of this machine."""
        text = json.dumps(value)
        for there, address in here.items():
            text = text.replace(there, address)
        return json.loads(text)

    def start(name: str) -> Child:
        env = local(SYSTEM[name]["environment"]) | {"PAUSE": "0.1", "WORK": "0", "METRICS_PORT": "0"}
        return stack.enter_context(Child.python(EXAMPLE, *SYSTEM[name]["command"], cwd=tmp_path, env=env))

    with ExitStack() as stack:
        service = local(SYSTEM["resource"])
        command = [*service["command"], "--json", "--port", "0"]
        resource = stack.enter_context(Child.fencepost(*command, cwd=tmp_path, env=service["environment"]))
        address = resource.json()["url"].replace("http://0.0.0.0", "127.0.0.1")
        here["resource:8700"] = address
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):  # without a token
            path = named("Deployment", "resource")[probe]["httpGet"]["path"]
            with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
                assert answer.status == 200

        processes = {"worker": start("worker"), "leader": start("leader")}
        targets = {
            name: f"127.0.0.1:{each.line().removeprefix('metrics on port ')}" for name, each in processes.items()
        }
        turns = [re.sub(r"counted to (\d+) under token \d+", r"\1", processes["worker"].line()) for _ in range(2)]
        assert int(turns[1]) == int(turns[0]) + 1
        assert re.fullmatch(r"leads under token \d+", processes["leader"].line())

        settings = local(document("prometheus/prometheus.yml"))
        settings["global"] = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"}
        for job in settings["scrape_configs"]:
            for found in job.pop("dns_sd_configs", []):
                (name,) = found["names"]
                assert str(found["port"]) == SYSTEM[name]["environment"]["METRICS_PORT"]
                job["static_configs"] = [{"targets": [targets[name]]}]
        prometheus = Prometheus()
        prometheus.settings = settings
        stack.enter_context(running(prometheus))

        def seen() -> dict[str, str]:
            found = prometheus.ask("targets")["data"]["activeTargets"]
            return {each["labels"]["job"]: each["health"] for each in found}

        all_up = dict.fromkeys(("resource", "worker", "leader"), "up")
        until(lambda: seen() == all_up, "Prometheus reaches all three", watching=[resource, *processes.values()])
        rules = [rule for group in prometheus.ask("rules")["data"]["groups"] for rule in group["rules"]]
        assert len(rules) == (DEPLOY / "prometheus" / "rules.yml").read_text().count("alert:")

        # The CronJob: skipped, without a failure, while another run is at it; and then made.
        container = named("CronJob", "report")
        words = [*container["command"][1:], sys.executable, EXAMPLE, *container["args"][2:]]
        env = local(SYSTEM["worker"]["environment"])
        with fencepost.connect(redis_server.url) as locks, locks.lock("counting/report", timeout=30):
            skipped = stack.enter_context(Child.fencepost(*words, cwd=tmp_path, env=env))
            assert skipped.succeed() == []
        (said,) = stack.enter_context(Child.fencepost(*words, cwd=tmp_path, env=env)).succeed()
        assert int(said.removeprefix("reported ")) >= int(turns[1])

        for each in (*processes.values(), resource):
            each.signal(signal.SIGTERM)
            assert each.wait() == 0, each.story
        with fencepost.connect(etcd_server.url) as locks:
            assert locks.election("counting/leader").leader() is None  # it resigned
