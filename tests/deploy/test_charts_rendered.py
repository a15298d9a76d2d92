"""What Helm makes of the charts and examples: lint, Kubernetes' schemas, and the services' own reading of it.

Needs helm and kubeconform (`make charts-tools`). Each check is shown a mistake.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from isotherm.deploy import charts, connectors, values
from isotherm.deploy.paths import CHARTS, EXAMPLES, ROOT
from isotherm.deploy.services import SERVICES
from isotherm.deploy.values import UMBRELLA
from isotherm.servicekit import settings

pytestmark = pytest.mark.charts

Object = dict[str, Any]

SCHEMAS = ROOT / "deploy" / "kubernetes-schemas"
EXAMPLE_FILES = sorted(EXAMPLES.glob("*.values.yaml"))
BY_VARIABLES = {service.variables: service for service in SERVICES}
ALONE = {
    "mqtt-proxy": {"settings": {"allow_anonymous": True}},
    "console": {"settings": {"auth": {"anonymous": "reader"}}},
}
"""What a chart cannot be without when it is deployed alone."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return charts.assemble(tmp_path_factory.mktemp("charts"))


@pytest.fixture(scope="module")
def rendered(folder: Path) -> Callable[[str], list[Object]]:
    """The objects of an example, rendered once."""
    made: dict[str, list[Object]] = {}

    def render(example: str) -> list[Object]:
        if example not in made:
            made[example] = charts.render(folder / UMBRELLA, "--values", str(EXAMPLES / example))
        return copy.deepcopy(made[example])

    return render


def templates(objects: list[Object]) -> dict[str, Object]:
    """The pod templates by the name of what runs them; a difference in one replaces its pods."""
    kinds = ("Deployment", "StatefulSet", "Job")
    return {one["metadata"]["name"]: one["spec"]["template"] for one in objects if one["kind"] in kinds}


def pods(objects: list[Object]) -> dict[str, Object]:
    """What the pods are, by the name of what runs them."""
    return {name: template["spec"] for name, template in templates(objects).items()}


def configurations(objects: list[Object]) -> dict[str, dict[str, str]]:
    """What is in the configuration that each workload mounts, by its name."""
    return {
        one["metadata"]["name"]: one["data"]
        for one in objects
        if one["kind"] == "ConfigMap" and "settings.toml" in one["data"]
    }


def conform(objects: list[Object]) -> str:
    """The violations of Kubernetes' schemas; empty when there are none."""
    done = subprocess.run(
        [charts.tool("kubeconform"), "-strict", "-schema-location", f"{SCHEMAS}/{{{{.ResourceKind}}}}.json"],
        input=yaml.safe_dump_all(objects),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def pod_problems(name: str, pod: Object, once: bool) -> list[str]:
    """Which rules of docs/how-to/deploy.md a pod breaks."""
    (container,) = pod["containers"]
    security, own = pod["securityContext"], container["securityContext"]
    found = []
    if not security["runAsNonRoot"] or security["runAsUser"] != 10001:
        found.append(f"{name} does not run as the fixed user")
    if security["seccompProfile"] != {"type": "RuntimeDefault"}:
        found.append(f"{name} has no seccomp profile")
    if not own["readOnlyRootFilesystem"] or own["allowPrivilegeEscalation"] or own["capabilities"] != {"drop": ["ALL"]}:
        found.append(f"{name} may do too much")
    if pod["automountServiceAccountToken"] and not pod.get("serviceAccountName"):
        found.append(f"{name} has a token that it does not need")
    if "memory" not in container["resources"].get("limits", {}):
        found.append(f"{name} has no memory limit")
    if "@" not in container["image"] and not container["image"].rpartition(":")[2][:1].isdigit():
        found.append(f"{name}: image {container['image']} is not pinned")
    if not once:
        found += _probe_problems(name, container)
    return found


def _probe_problems(name: str, container: Object) -> list[str]:
    wanted = {"startupProbe": "/live", "livenessProbe": "/live", "readinessProbe": "/ready"}
    return [
        f"{name}: {probe} does not ask {path}"
        for probe, path in wanted.items()
        if container.get(probe, {}).get("httpGet") != {"path": path, "port": "monitoring"}
    ]


@pytest.mark.parametrize("chart", [service.name for service in SERVICES])
def test_a_chart_alone_is_clean(folder: Path, tmp_path: Path, chart: str) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(ALONE.get(chart, {})), encoding="utf-8")

    charts.lint(folder / chart, "--values", str(file))
    objects = charts.render(folder / chart, "--values", str(file))

    assert conform(objects) == ""
    assert objects or chart in ("persisters", "coap-ingest")


@pytest.mark.parametrize(
    ("chart", "words"),
    [
        ("mqtt-proxy", "no device could connect: set settings.password_file or settings.tls.cafile"),
        ("console", "nobody is known who may come: set settings.auth.operator_passwords"),
    ],
)
def test_what_could_not_start_is_refused_with_words(folder: Path, chart: str, words: str) -> None:
    """The service's own settings refuse these values, which as pods would be a crash loop."""
    other = next(name for name in ALONE if name != chart)
    others_start = (f"--set-json={other}={json.dumps(ALONE[other])}",)

    for refused in ((folder / chart,), (folder / UMBRELLA, *others_start)):
        with pytest.raises(charts.ChartError, match=words):
            charts.render(*refused)
    objects = charts.render(folder / UMBRELLA, *others_start, "--set", f"{chart}.enabled=false")
    assert chart not in {one["metadata"]["labels"].get("app.kubernetes.io/component") for one in objects}


@pytest.mark.parametrize(
    ("chart", "arguments"),
    [
        ("mqtt-proxy", ["--set", "settings.allow_anonymous=true"]),
        ("mqtt-proxy", ["--set", "settings.password_file=/etc/isotherm/secrets/devices/passwords"]),
        ("mqtt-proxy", ["--set", "settings.tls.cafile=/a,settings.tls.certfile=/b,settings.tls.keyfile=/c"]),
        ("mqtt-proxy", ["--set", "settings.role=worker,settings.worker_group=mqtt"]),
        ("mqtt-proxy", ["--set", "secretEnv.ISOTHERM_MQTT_PROXY__PASSWORD_FILE.name=a", "--set",
                        "secretEnv.ISOTHERM_MQTT_PROXY__PASSWORD_FILE.key=b"]),
        ("console", ["--set", "settings.auth.anonymous=none"]),
        ("console", ["--set", "settings.auth.reader_tokens.grafana=${env:TOKEN}"]),
        ("console", ["--set", "global.secretEnv.ISOTHERM_CONSOLE__AUTH__READER_TOKENS__A.name=a", "--set",
                     "global.secretEnv.ISOTHERM_CONSOLE__AUTH__READER_TOKENS__A.key=b"]),
    ],
)  # fmt: skip
def test_whatever_says_who_may_come_is_enough(folder: Path, chart: str, arguments: list[str]) -> None:
    assert charts.render(folder / chart, *arguments)


@pytest.mark.parametrize(
    ("settings_given", "ports"),
    [
        ("allow_anonymous=true", [("mqtt", 1883)]),
        ("allow_anonymous=true,settings.websocket.port=9001", [("mqtt", 1883), ("ws", 9001)]),
        (
            "tls.cafile=/a,settings.tls.certfile=/b,settings.tls.keyfile=/c,settings.websocket.port=9001",
            [("mqtts", 1883), ("wss", 9001)],
        ),
    ],
)
def test_clients_reach_the_ports_of_the_mqtt_server(
    folder: Path, settings_given: str, ports: list[tuple[str, int]]
) -> None:
    objects = charts.render(folder / "mqtt-proxy", "--set", f"settings.{settings_given}")
    served = [
        [(port["name"], port["port"]) for port in one["spec"]["ports"]] for one in objects if one["kind"] == "Service"
    ]
    (policy,) = [one for one in objects if one["kind"] == "NetworkPolicy"]
    allowed = [[port["port"] for port in rule["ports"]] for rule in policy["spec"]["ingress"]]
    (pod,) = pods(objects).values()
    (container,) = pod["containers"]
    assert [(port["name"], port["containerPort"]) for port in container["ports"]] == [("monitoring", 8080), *ports]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["ISOTHERM_MQTT_PROXY__WEBSOCKET__HOST"] == environment["ISOTHERM_MQTT_PROXY__LISTENER__HOST"]
    assert ports in served
    assert allowed == [["monitoring"], [name for name, _ in ports]]
    assert pod_problems("it", pod, once=False) == []
    assert conform(objects) == ""


def test_nobody_connects_to_a_bridge(folder: Path) -> None:
    objects = charts.render(
        folder / "mqtt-proxy", "--set", "settings.role=worker,settings.worker_group=mqtt,settings.websocket.port=9001"
    )
    opened = [port["name"] for one in objects if one["kind"] == "Service" for port in one["spec"]["ports"]]
    (pod,) = pods(objects).values()
    assert opened == ["monitoring"] == [port["name"] for port in pod["containers"][0]["ports"]]


def test_the_umbrella_runs_as_soon_as_it_knows_who_may_come(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(ALONE), encoding="utf-8")

    charts.lint(folder / UMBRELLA, "--values", str(file))
    objects = charts.render(folder / UMBRELLA, "--values", str(file))

    assert conform(objects) == ""
    for name, data in configurations(objects).items():
        (container,) = pods(objects)[name]["containers"]
        if container["name"] == "apply":
            continue
        environment = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        service = next(
            found for prefix, found in BY_VARIABLES.items() if any(key.startswith(prefix) for key in environment)
        )
        settings_file = tmp_path / f"{name}.toml"
        settings_file.write_text(data["settings.toml"], encoding="utf-8")
        image = {"ISOTHERM_AGGREGATOR__CHECKPOINT_DIR": "/c", "ISOTHERM_AGGREGATOR__JARS_DIR": "/j"}
        settings.load(service.settings, service.name, environ=image | environment, file=settings_file)


@pytest.mark.parametrize("example", [file.name for file in EXAMPLE_FILES])
def test_an_example_is_clean(folder: Path, rendered: Callable[[str], list[Object]], example: str) -> None:
    charts.lint(folder / UMBRELLA, "--values", str(EXAMPLES / example))
    objects = rendered(example)

    assert conform(objects) == ""
    once = {one["metadata"]["name"] for one in objects if one["kind"] == "Job"}
    assert [problem for name, pod in pods(objects).items() for problem in pod_problems(name, pod, name in once)] == []


@pytest.mark.parametrize("example", [file.name for file in EXAMPLE_FILES])
def test_names_are_given_once_and_selectors_choose_one_workload(
    rendered: Callable[[str], list[Object]], example: str
) -> None:
    objects = rendered(example)
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    selectors = [
        tuple(one["spec"]["selector"]["matchLabels"].items())
        for one in objects
        if one["kind"] in ("Deployment", "StatefulSet")
    ]

    assert len(names) == len(set(names))
    assert len(selectors) == len(set(selectors))
    assert all(len(name) <= 63 for _, name in names)
    for one in objects:
        if one["kind"] in ("Deployment", "StatefulSet"):
            chosen = one["spec"]["selector"]["matchLabels"].items()
            assert chosen <= one["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("example", [file.name for file in EXAMPLE_FILES])
def test_every_service_takes_the_settings_that_it_is_given(
    rendered: Callable[[str], list[Object]], tmp_path: Path, example: str
) -> None:
    objects = rendered(example)
    given = configurations(objects)
    for name, pod in pods(objects).items():
        (container,) = pod["containers"]
        if container["name"] == "apply":
            continue
        # Kubernetes puts variables into later ones.
        environment = {one["name"]: one.get("value", "x").replace("$(POD_INDEX)", "3") for one in container["env"]}
        service = next(
            found for prefix, found in BY_VARIABLES.items() if any(key.startswith(prefix) for key in environment)
        )
        file = tmp_path / f"{name}.toml"
        file.write_text(given[name]["settings.toml"], encoding="utf-8")
        image = {"ISOTHERM_AGGREGATOR__CHECKPOINT_DIR": "/c", "ISOTHERM_AGGREGATOR__JARS_DIR": "/j"}

        loaded: Any = settings.load(service.settings, service.name, environ=image | environment, file=file)

        assert (loaded.http.host, loaded.http.port) == ("0.0.0.0", 8080)  # noqa: S104 - other pods ask there
        # Every reference has led to a variable of the pod.
        assert "${" not in repr(loaded.model_dump())
        # The pod is given longer than the service and its supervisor give themselves.
        drain_s = 5 if "lifecycle" in container else 0
        assert pod["terminationGracePeriodSeconds"] * 1000 >= loaded.shutdown_timeout_ms + 5_000 + drain_s * 1000


@pytest.mark.parametrize("example", [file.name for file in EXAMPLE_FILES])
def test_connectors_are_those_that_were_validated(rendered: Callable[[str], list[Object]], example: str) -> None:
    """tests/deploy/test_charts_values.py holds them to the services' own code."""
    given = configurations(rendered(example))
    own = values.of_services(values.read(EXAMPLES / example))
    wanted = {f"isotherm-persisters-{name}": one for name, one in connectors.of_persisters(own["persisters"]).items()}
    if "coap-ingest" in own:
        wanted |= {f"isotherm-coap-ingest-{n}": c for n, c in connectors.of_coap_ingest(own["coap-ingest"]).items()}

    assert wanted
    assert {
        name: json.loads(data["connector.json"]) for name, data in given.items() if "connector.json" in data
    } == wanted


def test_numbers_reach_a_connector_as_they_were_written(folder: Path, tmp_path: Path) -> None:
    written = {8_000_000: "8000000", 604_800_000_000: "604800000000", -1_000_000: "-1000000", 2_000_000.5: "2000000.5",
               0.00001: "0.00001", 3_000_000.0: "3000000", "8e+06": "8e+06", False: "false"}  # fmt: skip
    given = values.read(EXAMPLES / "demo.values.yaml")
    given["persisters"]["jobs"][0]["properties"] = {text: value for value, text in written.items()}
    given["coap-ingest"]["sources"][0]["properties"] = {text: value for value, text in written.items()}
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(given), encoding="utf-8")

    made = configurations(charts.render(folder / UMBRELLA, "--values", str(file)))
    job = json.loads(made["isotherm-persisters-temperatures-to-elasticsearch"]["connector.json"])
    source = json.loads(made["isotherm-coap-ingest-coap-source"]["connector.json"])
    own = values.of_services(given)

    assert [job[text] for text in written.values()] == list(written.values())
    assert job == connectors.of_persisters(own["persisters"])["temperatures-to-elasticsearch"]
    assert source == connectors.of_coap_ingest(own["coap-ingest"])["coap-source"]


def test_secrets_are_only_referred_to(rendered: Callable[[str], list[Object]]) -> None:
    objects = rendered("smart-home.values.yaml")
    text = "".join(text for data in configurations(objects).values() for text in data.values())
    referred = {one["valueFrom"]["secretKeyRef"]["name"] for pod in pods(objects).values() for one in
                pod["containers"][0].get("env", []) if "secretKeyRef" in one.get("valueFrom", {})}  # fmt: skip

    assert "${env:KAFKA_PASSWORD}" in text
    assert {"kafka-isotherm-alerts", "elastic-user", "scylla-user", "registry-user"} <= referred
    assert not [one for one in objects if one["kind"] == "Secret"]


def test_there_is_one_aggregator_and_no_autoscaler_for_it(rendered: Callable[[str], list[Object]]) -> None:
    objects = rendered("smart-home.values.yaml")
    (aggregator,) = [
        one for one in objects if one["metadata"]["name"] == "isotherm-aggregator" and one["kind"] == "StatefulSet"
    ]
    scaled = {one["spec"]["scaleTargetRef"]["name"] for one in objects if one["kind"] == "HorizontalPodAutoscaler"}
    toml = tomllib.loads(configurations(objects)["isotherm-aggregator"]["settings.toml"])

    assert aggregator["spec"]["replicas"] == 1
    assert scaled == {"isotherm-persisters-aggregates-to-elasticsearch"}
    assert toml["spark"]["master"] == "k8s://https://kubernetes.default.svc"
    assert toml["spark"]["properties"]["spark.driver.host"] == "isotherm-aggregator-pods.home.svc"
    claims = {one["metadata"]["name"] for one in objects if one["kind"] == "PersistentVolumeClaim"}
    assert (
        toml["spark"]["properties"][
            "spark.kubernetes.executor.volumes.persistentVolumeClaim.checkpoint.options.claimName"
        ]
        in claims
    )


def test_a_new_job_changes_nothing_else(folder: Path, tmp_path: Path, rendered: Callable[[str], list[Object]]) -> None:
    job = """
    - name: brightness-to-hazelcast
      sink: hazelcast
      topics: [brightness]
      kcql: INSERT INTO brightness SELECT * FROM brightness WITHFORMAT JSON STOREAS IMAP PK device_id
      errorPolicy: RETRY
"""
    text = (EXAMPLES / "demo.values.yaml").read_text(encoding="utf-8")
    file = tmp_path / "values.yaml"
    file.write_text(text.replace("  jobs:\n", f"  jobs:{job}"), encoding="utf-8")

    before = {(one["kind"], one["metadata"]["name"]): one for one in rendered("demo.values.yaml")}
    after = {
        (one["kind"], one["metadata"]["name"]): one for one in charts.render(folder / UMBRELLA, "--values", str(file))
    }

    assert {name: one for name, one in after.items() if name in before} == before
    assert {name for _, name in after.keys() - before.keys()} == {
        "isotherm-persisters-brightness-to-hazelcast",
        "isotherm-persisters-brightness-to-hazelcast-pods",
    }


def test_a_new_version_of_one_service_touches_no_other(folder: Path, rendered: Callable[[str], list[Object]]) -> None:
    arguments = ("--values", str(EXAMPLES / "demo.values.yaml"), "--set", "aggregator.image.tag=0.2.0")
    before = {(one["kind"], one["metadata"]["name"]): one for one in rendered("demo.values.yaml")}
    after = {(one["kind"], one["metadata"]["name"]): one for one in charts.render(folder / UMBRELLA, *arguments)}

    assert before.keys() == after.keys()
    assert [name for name in before if before[name] != after[name]] == [("StatefulSet", "isotherm-aggregator")]


def test_a_newer_chart_replaces_only_pods_whose_tag_is_not_pinned(
    folder: Path, tmp_path: Path, rendered: Callable[[str], list[Object]]
) -> None:
    """docs/how-to/upgrade.md: the umbrella's next version, every tag pinned where it was but the aggregator's."""
    source = Path(shutil.copytree(CHARTS, tmp_path / "source"))
    for file in source.glob("*/Chart.yaml"):
        text = file.read_text(encoding="utf-8")
        version = yaml.safe_load(text)["version"]
        file.write_text(text.replace(f"ersion: {version}", "ersion: 99.0.0"), encoding="utf-8")
    newer = charts.assemble(tmp_path, source) / UMBRELLA
    own = values.of_services(values.read(EXAMPLES / "demo.values.yaml"))
    images = [f"{chart}.image" for chart, given in own.items() if "image" in given]
    images += [f"persisters.sinks.{sink}.image" for sink in own["persisters"]["sinks"]]
    pinned = [f"{image}.tag={'99.0.0' if image == 'aggregator.image' else '0.9.0'}" for image in images]
    example = ("--values", str(EXAMPLES / "demo.values.yaml"))

    before = templates(rendered("demo.values.yaml"))
    all_newer = templates(charts.render(newer, *example))
    one_newer = templates(charts.render(newer, *example, "--set", ",".join(pinned)))

    assert {name for name in before if before[name] != all_newer[name]} == before.keys() == all_newer.keys()
    assert [name for name in before if before[name] != one_newer[name]] == ["isotherm-aggregator"]


def test_a_change_of_settings_rolls_the_pods(folder: Path, rendered: Callable[[str], list[Object]]) -> None:
    def checksum(objects: list[Object]) -> dict[str, str]:
        return {
            one["metadata"]["name"]: one["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for one in objects
            if one["kind"] in ("Deployment", "StatefulSet")
        }

    example = EXAMPLES / "demo.values.yaml"
    changed = charts.render(folder / UMBRELLA, "--values", str(example), "--set", "persisters.settings.writers=4")
    before, after = checksum(rendered("demo.values.yaml")), checksum(changed)

    assert {name for name in before if before[name] != after[name]} == {n for n in before if "persisters" in n}


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("persisters.jobs[0].sink=cassandra", "/jobs/0/sink"),
        ("persisters.settings.writer=8", "writer"),
        ("mqtt-proxy.replicas=2", "an MQTT server is one pod"),
        ("mqtt-proxy.settings.websocket.port=1883", "needs a port of its own"),
        ("console.ingress.enabled=true", "ingress.host says by which name"),
        ("aggregator.replicas=2", "replicas"),
    ],
)
def test_helm_refuses_a_mistake(folder: Path, setting: str, text: str) -> None:
    with pytest.raises(charts.ChartError, match=text):
        charts.render(folder / UMBRELLA, "--values", str(EXAMPLES / "demo.values.yaml"), "--set", setting)


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("templates/broken.yaml", "{{ .Values.image.tag", "unclosed action"),
        ("templates/broken.yaml", "kind: [", "unable to parse YAML"),
        ("Chart.yaml", "apiVersion: v2\nname: alerts\n", "version is required"),
        ("values.yaml", "metric: {}\n", "'metric' not allowed"),
    ],
)
def test_lint_finds_a_mistake(folder: Path, tmp_path: Path, file: str, text: str, problem: str) -> None:
    chart = Path(shutil.copytree(folder / "alerts", tmp_path / "alerts"))
    (chart / file).write_text(text, encoding="utf-8")

    with pytest.raises(charts.ChartError, match=problem):
        charts.lint(chart)


def _first(objects: list[Object], kind: str) -> Object:
    return next(one for one in objects if one["kind"] == kind)


def test_kubernetes_schemas_find_mistakes(rendered: Callable[[str], list[Object]]) -> None:
    objects = rendered("smart-home.values.yaml")
    unknown = copy.deepcopy(_first(objects, "Deployment"))
    unknown["spec"]["template"]["spec"]["container"] = []
    wrong = copy.deepcopy(_first(objects, "Service"))
    wrong["spec"]["ports"][0]["port"] = "http"
    rule = copy.deepcopy(_first(objects, "PrometheusRule"))
    rule["spec"]["groups"][0]["rules"][0]["annotation"] = {}

    assert "container" in conform([unknown])
    assert "port" in conform([wrong])
    assert "annotation" in conform([rule])


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("securityContext/runAsUser", 0, "does not run as the fixed user"),
        ("containers/0/securityContext/readOnlyRootFilesystem", False, "may do too much"),
        ("containers/0/livenessProbe/httpGet/path", "/ready", "livenessProbe does not ask /live"),
        ("containers/0/image", "isotherm/persisters:latest", "is not pinned"),
        ("containers/0/resources", {}, "has no memory limit"),
        ("automountServiceAccountToken", True, "has a token that it does not need"),
    ],
)
def test_a_broken_pod_is_found(rendered: Callable[[str], list[Object]], path: str, value: object, problem: str) -> None:
    pod = next(iter(pods([_first(rendered("demo.values.yaml"), "Deployment")]).values()))
    *above, last = path.split("/")
    place: Any = pod
    for part in above:
        place = place[int(part)] if isinstance(place, list) else place[part]
    place[last] = value

    assert any(problem in found for found in pod_problems("it", pod, once=False))
