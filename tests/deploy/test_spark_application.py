"""The manifest for the Kubernetes operator of Spark: the service takes what it says."""

from __future__ import annotations

import tomllib
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark import gateway, properties
from isotherm.deploy.paths import ROOT

MANIFEST = ROOT / "deploy" / "spark-operator" / "aggregator.yaml"


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[str, Any]]:
    """By kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))}


@pytest.fixture(scope="module")
def application(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the operator is told."""
    spec: dict[str, Any] = objects["SparkApplication"]["spec"]
    return spec


@pytest.fixture(scope="module")
def settings(objects: dict[str, dict[str, Any]]) -> AggregatorSettings:
    """What the service reads."""
    text = objects["ConfigMap"]["data"]["settings.toml"]
    return AggregatorSettings.model_validate(tomllib.loads(text))


def test_the_service_takes_the_settings_and_the_properties(
    application: dict[str, Any], settings: AggregatorSettings
) -> None:
    gateway.verify_jvm_is_free_to_choose(settings)
    chosen = properties.of_session(settings, application["sparkConf"], lambda _name: True)
    assert chosen["spark.sql.shuffle.partitions"] == str(settings.shuffle_partitions)
    assert not any(name.startswith("spark.ui.") for name in chosen)


def test_the_file_is_the_one_that_spark_submit_takes(application: dict[str, Any]) -> None:
    spec = find_spec("isotherm.aggregator.submit.isotherm_aggregator")
    assert spec is not None
    assert spec.origin is not None
    file = PurePosixPath(application["mainApplicationFile"].removeprefix("local://"))
    assert file.parts[-4:] == Path(spec.origin).parts[-4:]
    assert application["arguments"][:2] == ["run", "--config"]


def test_checkpoint_and_settings_are_mounted_where_they_are_used(
    objects: dict[str, dict[str, Any]], application: dict[str, Any], settings: AggregatorSettings
) -> None:
    volumes = {volume["name"]: volume for volume in application["volumes"]}
    assert (
        volumes["checkpoint"]["persistentVolumeClaim"]["claimName"]
        == (objects["PersistentVolumeClaim"]["metadata"]["name"])
    )
    assert volumes["config"]["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
    for pod in ("driver", "executor"):
        mounts = {mount["name"]: mount["mountPath"] for mount in application[pod]["volumeMounts"]}
        assert settings.checkpoint_dir.startswith(f"file://{mounts['checkpoint']}/")
    mounts = {mount["name"]: mount["mountPath"] for mount in application["driver"]["volumeMounts"]}
    assert Path(application["arguments"][2]).is_relative_to(mounts["config"])
    assert {port["containerPort"] for port in application["driver"]["ports"]} == {settings.http.port}
