"""docker-compose.yml keeps the rules of docs/how-to/deploy.md; no engine needed. Each check is shown a broken copy."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
CLUSTER = ROOT / "deploy/compose/scylla-cluster.yml"
PROFILES = {"observability", "kibana", "postgresql", "opensearch"}
HARDENED = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
_PINNED = re.compile(r".+/?[^:]+:[\w.-]*\d[\w.-]*")

Service = dict[str, Any]
Compose = dict[str, Any]


def load(text: str) -> Compose:
    """Read a compose file with its anchors and merge keys resolved."""
    compose: Compose = yaml.safe_load(text)
    return compose


def problems(compose: Compose) -> list[str]:
    """Which rules a compose file breaks."""
    services: dict[str, Service] = compose["services"]
    found = [problem for name, service in services.items() for problem in _service(name, service, compose)]
    used = {_volume(mount)[0] for service in services.values() for mount in service.get("volumes", [])}
    found += [f"volume {name} is used by nobody" for name in compose.get("volumes", {}).keys() - used]
    published = [port.rpartition(":")[0] for service in services.values() for port in service.get("ports", [])]
    found += [f"{port} is published twice" for port in sorted(set(published)) if published.count(port) > 1]
    if "name" in compose:
        found.append("name: docker-compose 1.29 refuses it; .env names the project")
    return found


def _service(name: str, service: Service, compose: Compose) -> Iterator[str]:
    services = compose["services"]
    if not _PINNED.fullmatch(service.get("image", "")) or service["image"].endswith(":latest"):
        yield f"{name}: image {service.get('image')} is not pinned"
    for key in ("container_name", "privileged", "network_mode", "pid", "cap_add"):
        if key in service:
            yield f"{name}: {key} is not used"
    if "mem_limit" not in service:
        yield f"{name}: mem_limit is missing"
    if service.get("restart") not in ("unless-stopped", "no"):
        yield f"{name}: restart is {service.get('restart')}"
    if is_one_shot(service) == has_healthcheck(service):
        yield f"{name}: runs {'once with' if is_one_shot(service) else 'on without'} health check"
    if set(service.get("profiles", [])) - PROFILES:
        yield f"{name}: unknown profile"
    for port in service.get("ports", []):
        if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+(/udp)?", port):
            yield f"{name}: port {port} is not bound to the loopback address"
    for mount in service.get("volumes", []):
        yield from _mount(name, mount, compose)
    for network in service.get("networks", []):
        if network not in compose.get("networks", {}):
            yield f"{name}: network {network} is not defined"
    yield from _dependencies(name, service, services)
    if is_one_shot(service) and not _is_waited_for(name, services):
        yield f"{name}: nobody waits for its end, which `up --wait` then takes for a failure"
    if "build" in service:
        yield from _built(name, service)


def _mount(name: str, mount: str, compose: Compose) -> Iterator[str]:
    source, _, options = _volume(mount)
    if source.startswith("."):
        if not (ROOT / source).exists():
            yield f"{name}: {source} is not there"
        if options != "ro":
            yield f"{name}: {source} is mounted writable"
    elif source not in compose.get("volumes", {}):
        yield f"{name}: volume {source} is not defined"


def _volume(mount: str) -> tuple[str, str, str]:
    source, _, rest = mount.partition(":")
    target, _, options = rest.partition(":")
    return source, target, options


def _dependencies(name: str, service: Service, services: dict[str, Service]) -> Iterator[str]:
    for other, how in service.get("depends_on", {}).items():
        if other not in services:
            yield f"{name}: depends on {other}, which is not defined"
            continue
        wanted = "service_completed_successfully" if is_one_shot(services[other]) else "service_healthy"
        if how["condition"] != wanted:
            yield f"{name}: waits for {other} by {how['condition']}, not {wanted}"
        if "profiles" in services[other] and not _started_with(service, services[other]):
            yield f"{name}: depends on {other}, which another profile starts"


def _is_waited_for(name: str, services: dict[str, Service]) -> bool:
    conditions = [service.get("depends_on", {}).get(name, {}).get("condition") for service in services.values()]
    return "service_completed_successfully" in conditions


def _started_with(service: Service, other: Service) -> bool:
    """Whether every profile that starts a service starts another one, too."""
    profiles = set(service.get("profiles", []))
    return bool(profiles) and profiles <= set(other["profiles"])


def _built(name: str, service: Service) -> Iterator[str]:
    build = service["build"]
    if build["context"] != "." or not (ROOT / build["dockerfile"]).is_file():
        yield f"{name}: there is no {build['dockerfile']} under {build['context']}"
    declared = set(re.findall(r"^ARG (\w+)", dockerfile(service), re.MULTILINE))
    given = build.get("args", {}).keys()
    if declared != given:
        yield f"{name}: build arguments {sorted(given)} instead of {sorted(declared)}"
    if service.get("pull_policy") != "build":
        yield f"{name}: its image is pulled before it is built"
    if "tmpfs" not in service:
        yield f"{name}: tmpfs is missing"
    if (":exec" in "".join(service.get("tmpfs", []))) != ("jre" in dockerfile(service)):
        yield f"{name}: tmpfs is executable where Java runs, and nowhere else"
    for key, value in HARDENED.items():
        if service.get(key) != value:
            yield f"{name}: {key} is not {value}"


def is_one_shot(service: Service) -> bool:
    """Whether the service runs once and ends."""
    return bool(service.get("restart") == "no")


def dockerfile(service: Service) -> str:
    """Text of the Dockerfile that a service is built from."""
    path = ROOT / service["build"]["dockerfile"]
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def has_healthcheck(service: Service) -> bool:
    """Whether the service or its image has a health check."""
    if "healthcheck" in service:
        return not service["healthcheck"].get("disable", False)
    return "build" in service and bool(re.search(r"^HEALTHCHECK -", dockerfile(service), re.MULTILINE))


def started_by_default(compose: Compose) -> set[str]:
    """What `docker compose up` starts, without a profile."""
    return {name for name, service in compose["services"].items() if "profiles" not in service}


def mebibytes(limit: str) -> int:
    """A `mem_limit` as a number."""
    return int(limit[:-1]) * {"m": 1, "g": 1024}[limit[-1]]


def _check_schema(file: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("check-jsonschema")), "--builtin-schema", "vendor.compose-spec"]
    return subprocess.run([*command, str(file)], capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def compose() -> Compose:
    return load(FILE.read_text(encoding="utf-8"))


def test_compose_file_keeps_the_rules(compose: Compose) -> None:
    assert problems(compose) == []


@pytest.mark.parametrize("file", [FILE, CLUSTER], ids=lambda file: file.name)
def test_compose_file_fits_the_specification(file: Path) -> None:
    result = _check_schema(file)

    assert result.returncode == 0, result.stdout


def test_up_starts_everything_but_observability(compose: Compose) -> None:
    environment = (ROOT / ".env").read_text(encoding="utf-8")

    assert "COMPOSE_PROJECT_NAME=isotherm" in environment.splitlines()
    # Whoever names a profile would switch off what this file switched on.
    assert "COMPOSE_PROFILES" not in environment
    assert compose["services"].keys() - started_by_default(compose) == {
        "prometheus",
        "grafana",
        "kibana",
        "postgresql",
        "persister-postgresql",
        "opensearch",
        "persister-opensearch",
    }


def test_simulated_devices_have_one_switch(compose: Compose) -> None:
    switched = {name for name, service in compose["services"].items() if service.get("scale") == "${SIMULATORS:-1}"}
    simulators = {
        name
        for name, service in compose["services"].items()
        if service.get("build", {}).get("dockerfile") == "simulators/Dockerfile"
    }

    assert switched == simulators | {"device-import"}
    # Nothing that stays waits for what is switched off.
    assert [
        name
        for name, service in compose["services"].items()
        if name not in switched and switched & service.get("depends_on", {}).keys()
    ] == []


def test_the_documentation_states_the_memory_limits(compose: Compose) -> None:
    text = (ROOT / "docs/how-to/deploy.md").read_text(encoding="utf-8")
    services = compose["services"]
    default = sum(
        mebibytes(services[name]["mem_limit"])
        for name in started_by_default(compose)
        if not is_one_shot(services[name])
    )

    stated = dict(re.findall(r"^\| `?\(?([a-z]+)\)?`? \|.*\| (\d+) MiB \|$", text, re.MULTILINE))
    assert stated == {
        "none": str(default),
        "observability": str(sum(mebibytes(services[name]["mem_limit"]) for name in ("prometheus", "grafana"))),
        "kibana": str(mebibytes(services["kibana"]["mem_limit"])),
        **{
            store: str(sum(mebibytes(services[name]["mem_limit"]) for name in (store, f"persister-{store}")))
            for store in ("postgresql", "opensearch")
        },
    }


def test_a_heap_fits_below_its_limit(compose: Compose) -> None:
    for name, service in compose["services"].items():
        for heap in re.findall(r"-Xmx(\d+)m", " ".join(service.get("environment", {}).values())):
            assert int(heap) <= 0.7 * mebibytes(service["mem_limit"]), name


def test_rows_have_as_many_copies_as_scylla_has_nodes(compose: Compose) -> None:
    cluster = load(CLUSTER.read_text(encoding="utf-8"))["services"]
    nodes = [one for one in (compose["services"] | cluster).values() if one.get("image", "").startswith("scylladb/")]
    alone = [one["environment"]["CASSANDRA_REPLICATION"] for one in compose["services"].values() if _writes_rows(one)]
    together = [one["environment"]["CASSANDRA_REPLICATION"] for one in cluster.values() if _writes_rows(one)]
    file = (ROOT / "examples/demo/readings-to-cassandra.properties").read_text(encoding="utf-8")

    assert (alone, together) == (["1"] * 2, [str(len(nodes))] * 2)
    assert {name for name, one in cluster.items() if _writes_rows(one)} == {"persister-scylla", "worker-sinks"}
    assert "connect.cassandra.key.space.replication.factor = ${env:CASSANDRA_REPLICATION}" in file.splitlines()
    # The keyspace is made when all nodes are there.
    assert all(
        one["depends_on"] == {"scylla-3": {"condition": "service_healthy"}}
        for one in cluster.values()
        if _writes_rows(one)
    )


def _writes_rows(service: Service) -> bool:
    return "CASSANDRA_REPLICATION" in service.get("environment", {})


def test_the_schema_finds_a_misspelt_key(tmp_path: Path, compose: Compose) -> None:
    compose["services"]["kafka"]["healthchek"] = compose["services"]["kafka"].pop("healthcheck")
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(yaml.safe_dump(compose), encoding="utf-8")

    result = _check_schema(broken)

    assert result.returncode == 1
    assert "healthchek" in result.stdout


def _with(service: str, key: str, value: object) -> Callable[[Compose], None]:
    def change(compose: Compose) -> None:
        compose["services"][service][key] = value

    return change


def _without(service: str, key: str) -> Callable[[Compose], None]:
    def change(compose: Compose) -> None:
        del compose["services"][service][key]

    return change


def _named(compose: Compose) -> None:
    compose["name"] = "isotherm"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_with("kafka", "image", "apache/kafka:latest"), "kafka: image apache/kafka:latest is not pinned"),
        (_with("kafka", "image", "apache/kafka"), "kafka: image apache/kafka is not pinned"),
        (_with("kafka", "container_name", "kafka"), "kafka: container_name is not used"),
        (_with("kafka", "privileged", True), "kafka: privileged is not used"),
        (_without("kafka", "mem_limit"), "kafka: mem_limit is missing"),
        (_without("kafka", "healthcheck"), "kafka: runs on without health check"),
        (_without("kafka", "restart"), "kafka: restart is None"),
        (_with("kafka", "profiles", ["other"]), "kafka: unknown profile"),
        (_with("kafka", "profiles", ["kibana"]), "init: depends on kafka, which another profile starts"),
        (_without("alerts", "pull_policy"), "alerts: its image is pulled before it is built"),
        (_with("alerts", "pull_policy", "if_not_present"), "alerts: its image is pulled before it is built"),
        (
            _without("mqtt-devices", "depends_on"),
            "device-import: nobody waits for its end, which `up --wait` then takes for a failure",
        ),
        (_with("kafka", "ports", ["9092:9092"]), "kafka: port 9092:9092 is not bound to the loopback address"),
        (_with("kafka", "ports", ["127.0.0.1:9200:9092"]), "127.0.0.1:9200 is published twice"),
        (_with("kafka", "networks", ["back"]), "kafka: network back is not defined"),
        (_with("kafka", "volumes", []), "volume kafka-data is used by nobody"),
        (_with("kafka", "volumes", ["other:/data", "kafka-data:/x"]), "kafka: volume other is not defined"),
        (_with("kafka", "volumes", ["./gone:/x:ro", "kafka-data:/x"]), "kafka: ./gone is not there"),
        (_with("kafka", "volumes", ["./docs:/x", "kafka-data:/x"]), "kafka: ./docs is mounted writable"),
        (
            _with("mqtt-proxy", "depends_on", {"gone": {"condition": "service_healthy"}}),
            "mqtt-proxy: depends on gone, which is not defined",
        ),
        (
            _with("mqtt-proxy", "depends_on", {"kafka": {"condition": "service_started"}}),
            "mqtt-proxy: waits for kafka by service_started, not service_healthy",
        ),
        (
            _with("mqtt-proxy", "depends_on", {"init": {"condition": "service_healthy"}}),
            "mqtt-proxy: waits for init by service_healthy, not service_completed_successfully",
        ),
        (
            _with("mqtt-proxy", "build", {"context": ".", "dockerfile": "gone/Dockerfile"}),
            "mqtt-proxy: there is no gone/Dockerfile under .",
        ),
        (
            _with("persister-scylla", "build", {"context": ".", "dockerfile": "services/persisters/Dockerfile"}),
            "persister-scylla: build arguments [] instead of ['SINK']",
        ),
        (_with("mqtt-proxy", "read_only", False), "mqtt-proxy: read_only is not True"),
        (_without("mqtt-proxy", "cap_drop"), "mqtt-proxy: cap_drop is not ['ALL']"),
        (_without("mqtt-proxy", "tmpfs"), "mqtt-proxy: tmpfs is missing"),
        (_with("aggregator", "tmpfs", ["/x"]), "aggregator: tmpfs is executable where Java runs, and nowhere else"),
        (_with("alerts", "tmpfs", ["/x:exec"]), "alerts: tmpfs is executable where Java runs, and nowhere else"),
        (_named, "name: docker-compose 1.29 refuses it; .env names the project"),
    ],
)
def test_a_broken_compose_file_is_found(compose: Compose, change: Callable[[Compose], None], problem: str) -> None:
    broken = copy.deepcopy(compose)
    change(broken)

    assert problem in problems(broken)


@pytest.mark.parametrize(
    ("service", "artifacts", "artifact"),
    [
        ("kafka", "kafka", "kafka_2.13"),
        ("registry", "registry", "apicurio-registry-app"),
        ("elasticsearch", "elasticsearch", "elasticsearch"),
        ("hazelcast", "hazelcast", "hazelcast"),
    ],
)
def test_images_have_the_versions_that_the_tests_run_against(
    compose: Compose, service: str, artifacts: str, artifact: str
) -> None:
    pom = (ROOT / f"stack/src/isotherm/stack/manifests/{artifacts}/pom.xml").read_text(encoding="utf-8")
    *_, version = re.findall(rf"<artifactId>{re.escape(artifact)}</artifactId>\s*<version>([^<]+)</version>", pom)

    assert compose["services"][service]["image"].rpartition(":")[2] == version
