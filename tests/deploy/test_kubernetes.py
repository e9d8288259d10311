"""deploy/kubernetes: what Kubernetes would accept; pods without rights, and commands that the program takes."""

from __future__ import annotations

import importlib
import re
from typing import Any

from tests import ROOT
from tests.deploy import DEPLOY, SECRETS, document, manifests, understood
from tests.harness.script import script

STAGES = {stage.name: stage for stage in script("image").parse((DEPLOY / "Dockerfile").read_text())}
IMAGES = {"fencepost": "program", "fencepost-example": "example"}
PAGE = ROOT / "docs" / "operate" / "deploy.md"


def pods() -> dict[str, Any]:
    """The pods that the manifests make, by the name of what makes them."""
    found = {}
    for _, each in manifests():
        spec = each.get("spec", {})
        if each["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if "template" in spec:
            found[each["metadata"]["name"]] = spec["template"]["spec"]
    return found


def test_every_object_is_one_of_kubernetes_and_is_applied() -> None:
    validate = importlib.import_module("kubernetes_validate")
    for path, found in manifests():
        validate.validate(found, validate.latest_version(), strict=True)
        assert path.name in document("kubernetes/kustomization.yaml")["resources"]
    assert {each["name"] for each in document("kubernetes/kustomization.yaml")["images"]} == set(IMAGES)
    assert {"Deployment", "Service", "CronJob", "NetworkPolicy"} <= {found["kind"] for _, found in manifests()}


def test_every_pod_runs_without_rights_as_the_user_of_the_image() -> None:
    (user,) = [step.rest for step in STAGES["program"].steps if step.word == "USER"]
    assert set(pods()) == {"resource", "leader", "report"}
    for pod in pods().values():
        context = pod["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
        assert context["runAsNonRoot"] is True
        assert context["fsGroup"] == context["runAsGroup"]  # so that it may read the secrets
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "cpu" not in container["resources"]["limits"]
        assert container["image"] in IMAGES


def test_passwords_and_tokens_come_from_secrets_that_the_page_makes() -> None:
    page = PAGE.read_text()
    stores = set(re.findall(r"^(\w+)=\w+://", page, re.MULTILINE))
    for pod in pods().values():
        (container,) = pod["containers"]
        for variable in container["env"]:
            assert ":" not in variable.get("value", "").partition("://")[2].partition("@")[0] or "@" not in str(
                variable
            )
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                assert (reference["name"], reference["key"] in stores) == ("fencepost-stores", True)
        for volume in pod["volumes"]:
            for item in volume.get("secret", {}).get("items", []):
                assert item["key"] in SECRETS
                assert f"--from-file=secrets/{item['key']}" in page


def test_the_commands_are_those_of_the_program() -> None:
    (resource,) = pods()["resource"]["containers"]
    understood(resource["args"])
    (report,) = pods()["report"]["containers"]
    assert report["command"][0] == "fencepost"
    understood([*report["command"][1:], *report["args"]])
    assert {"--no-wait", "--busy-exit"} <= set(report["command"])
    assert report["command"][report["command"].index("--busy-exit") + 1] == "0"
    (job,) = [found for _, found in manifests() if found["kind"] == "CronJob"]
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    (rule,) = job["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert not {0, 69, 75, 76} & set(rule["onExitCodes"]["values"])  # what another try can help with


def test_clients_reach_the_resource_and_its_service_finds_it() -> None:
    kinds = {found["kind"]: found for _, found in manifests() if found["metadata"]["name"] == "resource"}
    labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert kinds["Service"]["spec"]["selector"].items() <= labels.items()
    assert kinds["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    allowed = kinds["NetworkPolicy"]["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    for _, found in manifests():
        template = found.get("spec", {}).get("jobTemplate", found).get("spec", {}).get("template", {})
        if "RESOURCE_URL" in str(template):
            assert allowed.items() <= template["metadata"]["labels"].items()
    (container,) = pods()["resource"]["containers"]
    port = container["args"][container["args"].index("--port") + 1]
    assert [str(each["containerPort"]) for each in container["ports"]] == [port]
    assert str(kinds["Service"]["spec"]["ports"][0]["port"]) == port
