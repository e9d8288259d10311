"""deploy/stores.yaml stands in for scripts/servers, deploy/compose.yaml starts the system: pinned, on loopback."""

from __future__ import annotations

import importlib
import json
import re
from typing import Any

import pytest

from tests import ROOT
from tests.deploy import DEPLOY, SECRETS, document, services, understood
from tests.harness.script import script

STORES: dict[str, Any] = document("stores.yaml")["services"]
SYSTEM = services()
EXPORTS = dict(re.findall(r"export FENCEPOST_TEST_(\w+)_URL=(\S+)", (DEPLOY / "stores.yaml").read_text()))
OURS = {name: service for name, service in SYSTEM.items() if "build" in service}
STAGES = {stage.name: stage for stage in script("image").parse((DEPLOY / "Dockerfile").read_text())}


def mounts(name: str) -> dict[str, str]:
    """Where in the container -> what is mounted there."""
    return {volume.split(":")[1]: volume.split(":")[0] for volume in SYSTEM[name].get("volumes", [])}


def test_both_files_are_what_the_compose_specification_allows() -> None:
    schema = importlib.import_module("check_jsonschema.builtin_schemas").get_builtin_schema("vendor.compose-spec")
    validator = importlib.import_module("jsonschema").validators.validator_for(schema)(schema)
    for name in ("compose.yaml", "stores.yaml"):
        assert [error.message for error in validator.iter_errors(document(name))] == []
    assert not validator.is_valid({"services": {"a": {"imagine": "redis"}}})


@pytest.mark.parametrize("name", [*STORES, *(name for name in SYSTEM if name not in STORES)])
def test_a_service_is_pinned_checked_and_on_loopback_only(name: str) -> None:
    service = SYSTEM.get(name) or STORES[name]
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+(\.\d+)?", service["image"])
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    if name == "secrets":  # it ends; `up --wait` takes that for a failure unless a service waits for it to succeed
        waits = [each["depends_on"].get(name) for each in SYSTEM.values() if "depends_on" in each]
        assert {"condition": "service_completed_successfully"} in waits
    else:
        assert service["healthcheck"]["test"]


@pytest.mark.parametrize("found", [STORES, SYSTEM], ids=["stores", "system"])
def test_no_two_services_want_the_same_port(found: dict[str, Any]) -> None:
    ports = [port.split(":")[1] for service in found.values() for port in service.get("ports", [])]
    assert len(ports) == len(set(ports)) > 0


def test_every_exported_address_is_a_port_of_a_service() -> None:
    assert set(EXPORTS) == {"REDIS", "ETCD", "ZOOKEEPER", "CONSUL", "POSTGRES"}
    for name, url in EXPORTS.items():
        offered = {
            port.rpartition(":")[0]
            for service in STORES
            if service.startswith(name.lower())
            for port in STORES[service]["ports"]
        }
        assert set(re.findall(r"127\.0\.0\.1:\d+", url)) == offered


def test_the_servers_are_of_the_versions_that_the_report_measured() -> None:
    measured: dict[str, str] = {}
    for path in (ROOT / "docs" / "lab").glob("*.json"):
        measured |= json.loads(path.read_text())["versions"]
    for name, service in STORES.items():
        server = re.sub(r"redlock.*", "redis", re.sub(r"-\d$", "", name))
        assert service["image"].rpartition(":")[2].removeprefix("v") == measured[server], name


def test_our_services_run_stages_of_the_dockerfile_without_rights_and_take_their_commands() -> None:
    assert set(OURS) == {"secrets", "resource", "worker", "leader"}
    for service in OURS.values():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "user" not in service  # that of the image
        build = service["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")
        steps = {step.word: step.rest for step in STAGES[build["target"]].steps}
        entry = service.get("entrypoint") or json.loads(steps["ENTRYPOINT"])
        if entry == ["fencepost"]:
            understood(service["command"])
        else:
            assert entry[0] == "python"
        if service.get("healthcheck"):
            form, python, flag, source = service["healthcheck"]["test"]
            assert (form, python, flag) == ("CMD", "python", "-c")
            compile(source, "healthcheck", "exec")


def test_every_file_volume_secret_and_service_that_is_named_is_there() -> None:
    volumes = set(document("compose.yaml")["volumes"])
    for name, service in SYSTEM.items():
        for source in mounts(name).values():
            assert (DEPLOY / source).exists() if source.startswith("./") else source in volumes
        for path in re.findall(r"/secrets/([\w.]+)", json.dumps([service.get("command"), service.get("environment")])):
            assert path in SECRETS
            assert mounts(name)["/secrets"] == "secrets"
        assert set(service.get("depends_on", {})) <= set(SYSTEM)
        for host in re.findall(r"(?:://|@|,)([a-z][\w-]*)(?=[:/])", json.dumps(service.get("environment", {}))):
            assert host in SYSTEM, f"{name} names the host {host}, which is no service"


def test_grafana_finds_its_data_source_and_the_dashboard() -> None:
    places = mounts("grafana")
    folder = DEPLOY / places["/etc/grafana/provisioning"]
    assert {path.name for path in folder.iterdir()} == {"datasources", "dashboards"}  # the names that Grafana looks for
    (source,) = document("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == "http://prometheus:9090"
    assert SYSTEM["prometheus"]["ports"] == ["127.0.0.1:9090:9090"]
    (provider,) = document("grafana/provisioning/dashboards/fencepost.yml")["providers"]
    home = SYSTEM["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.rpartition("/")[0] == provider["options"]["path"]
    dashboard = json.loads((DEPLOY / places[home]).read_text())
    assert dashboard["uid"] == "fencepost"
    sources = {variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "datasource"}
    assert sources == {source["type"]}  # it takes the only one of this type by itself
