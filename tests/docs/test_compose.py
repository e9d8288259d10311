"""deploy/compose.yaml stands in for scripts/servers: pinned, on loopback, at the addresses it names."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from tests import ROOT

TEXT = (ROOT / "deploy" / "compose.yaml").read_text()
SERVICES: dict[str, Any] = importlib.import_module("yaml").safe_load(TEXT)["services"]
EXPORTS = dict(re.findall(r"export FENCEPOST_TEST_(\w+)_URL=(\S+)", TEXT))


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_checked_and_on_loopback_only(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+(\.\d+)?", service["image"])
    assert service["healthcheck"]["test"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_no_two_services_want_the_same_port() -> None:
    ports = [port.split(":")[1] for service in SERVICES.values() for port in service["ports"]]
    assert len(ports) == len(set(ports))


def test_every_exported_address_is_a_port_of_a_service() -> None:
    assert set(EXPORTS) == {"REDIS", "ETCD", "ZOOKEEPER", "CONSUL", "POSTGRES"}
    for name, url in EXPORTS.items():
        offered = {
            port.rpartition(":")[0]
            for service in SERVICES
            if service.startswith(name.lower())
            for port in SERVICES[service]["ports"]
        }
        assert set(re.findall(r"127\.0\.0\.1:\d+", url)) == offered
