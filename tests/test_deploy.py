"""Manifests and Compose files: valid, complete, with settings that exist. Needs no cluster, no engine."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from common.wire.calls import SERVICE
from fedserver.metrics.families import FAMILIES, ROUND_SECONDS
from tests.test_cli import PROGRAMS

ROOT = Path(__file__).parent.parent
KUBERNETES = ROOT / "deploy" / "kubernetes" / "base"
TLS = ROOT / "deploy" / "kubernetes" / "tls"
COMPOSE = [ROOT / "docker-compose.yml", *sorted((ROOT / "deploy" / "compose").glob("*.yml"))]


def kustomization(folder: Path = KUBERNETES) -> dict[str, Any]:
    """kustomization.yaml."""
    found: dict[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text())
    return found


def resources() -> list[dict[str, Any]]:
    """All resources as they are written."""
    files = kustomization()["resources"]
    return [each for name in files for each in yaml.safe_load_all((KUBERNETES / name).read_text())]


def patched() -> list[dict[str, Any]]:
    """The resources that the overlay for TLS changes, changed."""
    changed = []
    for patch in kustomization(TLS)["patches"]:
        (resource,) = [
            copy.deepcopy(each)
            for each in resources()
            if (each["kind"], each["metadata"]["name"]) == (patch["target"]["kind"], patch["target"]["name"])
        ]
        for operation in yaml.safe_load((TLS / patch["path"]).read_text()):
            *path, last = operation["path"].strip("/").split("/")
            place: Any = resource
            for step in path:
                place = place[int(step) if isinstance(place, list) else step]
            if last == "-":
                place.append(operation["value"])
            else:
                assert (last in place) == (operation["op"] == "replace")
                place[last] = operation["value"]
        changed.append(resource)
    return changed


def title(resource: dict[str, Any]) -> str:
    """For test names."""
    return f"{resource['kind']}-{resource['metadata']['name']}"


@pytest.mark.parametrize("resource", [*resources(), *patched()], ids=title)
def test_manifests_follow_the_schemas_of_kubernetes(resource: dict[str, Any]) -> None:
    kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


def test_a_server_that_builds_its_model_is_not_ready_but_not_restarted_either() -> None:
    (server,) = [each for each in resources() if title(each) == "StatefulSet-server"]
    container = server["spec"]["template"]["spec"]["containers"][0]
    named = {
        kind: container[f"{kind}Probe"]["grpc"].get("service")
        for kind in ("startup", "liveness", "readiness")
    }
    assert named == {"startup": None, "liveness": None, "readiness": SERVICE}


def test_a_wrong_manifest_would_be_noticed() -> None:
    (server,) = [each for each in resources() if title(each) == "StatefulSet-server"]
    server["spec"]["template"]["spec"]["containers"][0]["redinessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(server, kubernetes_validate.latest_version(), strict=True)


def test_every_manifest_is_part_of_the_kustomization() -> None:
    assert sorted(path.name for path in KUBERNETES.glob("*.yaml")) == sorted(
        ["kustomization.yaml", *kustomization()["resources"]]
    )


def test_the_overlay_stands_beside_its_base() -> None:
    """Kustomize refuses one inside the other."""
    (base,) = kustomization(TLS)["resources"]
    assert (TLS / base).resolve() == KUBERNETES
    assert KUBERNETES not in TLS.parents


def test_there_are_as_many_clients_as_the_server_waits_for() -> None:
    (run,) = kustomization()["configMapGenerator"]
    (clients,) = kustomization()["replicas"]
    assert f"FEDSERVER_RUN_NUM_CLIENTS={clients['count']}" in run["literals"]


def test_pods_are_hardened() -> None:
    for resource in resources():
        if resource["kind"] == "StatefulSet":
            pod = resource["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            assert pod["securityContext"]["runAsNonRoot"]
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("file", [*sorted((ROOT / "deploy").rglob("*.y*ml")), COMPOSE[0]], ids=str)
def test_settings_in_the_environment_are_flags(file: Path) -> None:
    for program, setting in re.findall(r"\b(FEDSERVER|FEDCLIENT)_RUN_([A-Z_]+)", file.read_text()):
        command = PROGRAMS[program.lower()].commands["run"]
        assert setting.lower() in {parameter.name for parameter in command.params}


def test_commands_in_the_compose_files_parse() -> None:
    services = yaml.safe_load(COMPOSE[0].read_text())["services"]
    for name in ("server", "client"):
        program, run, *flags = services[name]["command"].replace("${RUN:-default}", "default").split()
        assert program == f"fed{name}"
        PROGRAMS[program].commands[run].make_context(run, flags)


def test_tools_in_the_compose_file_are_hardened_and_wait_to_be_asked_for() -> None:
    services = yaml.safe_load(COMPOSE[0].read_text())["services"]
    for name, capabilities in (("wire", ["NET_RAW", "SETGID"]), ("slow", ["NET_ADMIN"])):
        tool = services[name]
        assert tool["profiles"] == [name]
        assert (tool["cap_drop"], tool["cap_add"]) == (["ALL"], capabilities)
        assert tool["read_only"]
        assert tool["security_opt"] == ["no-new-privileges:true"]
        assert tool["mem_limit"] == tool["memswap_limit"]


def test_prometheus_in_the_compose_file_looks_where_the_server_is_told_to_answer() -> None:
    services = yaml.safe_load(COMPOSE[0].read_text())["services"]
    monitor, folder = services["monitor"], ROOT / "deploy" / "monitoring"
    assert (monitor["profiles"], monitor["read_only"], monitor["cap_drop"]) == (["monitor"], True, ["ALL"])
    assert monitor["ports"][0].startswith("127.0.0.1:")
    (job,) = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["server:9464"]}]
    assert "FEDSERVER_RUN_PROMETHEUS" in services["server"]["environment"]


def test_alerts_and_grafana_ask_for_metrics_that_exist() -> None:
    folder = ROOT / "deploy" / "monitoring"
    known = {family.name for family in FAMILIES} | {ROUND_SECONDS[0] + end for end in ("_sum", "_count")}
    for name in ("alerts.yml", "grafana-dashboard.json"):
        asked = set(re.findall(r"\bfedpvr_[a-z_]+", (folder / name).read_text()))
        assert asked, name
        assert asked <= known, name
    panels = json.loads((folder / "grafana-dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_image_has_the_version_of_the_project() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert f'image.version="{version[1]}"' in (ROOT / "Dockerfile").read_text()
    for folder in (KUBERNETES, TLS):
        assert kustomization(folder)["images"] == [{"name": "fedpvr", "newTag": version[1]}]


def test_bases_of_images_are_pinned_to_a_release() -> None:
    files = ("Dockerfile", "deploy/compose/tools.Dockerfile", "deploy/monitoring/Dockerfile")
    for dockerfile in (ROOT / name for name in files):
        bases = re.findall(r"^FROM (\S+)", dockerfile.read_text(), re.MULTILINE)
        assert set(bases) <= {"python:3.11-slim-bookworm", "packages"}
