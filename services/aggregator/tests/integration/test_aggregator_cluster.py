"""The same job on several executors, each in its own JVM, as with every Spark master except `local`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
from aggregator_steps import SCHEMAS, Steps
from aggregator_world import Process, Topics

from isotherm.stack.servers.kafka import Kafka
from isotherm.stack.servers.registry import Registry

# Three JVMs of Spark: too much beside everything else that `make test` runs.
pytestmark = [pytest.mark.integration, pytest.mark.long]


def own_spark_home(folder: Path) -> Path:
    """A folder to put before others in PYTHONPATH: workers of `local-cluster` write into the SPARK_HOME they find."""
    home = folder / "pyspark"
    home.mkdir(parents=True)
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return folder


def test_two_executors_share_the_work(
    kafka: Kafka, registry: Registry, tmp_path: Path, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = Topics(kafka.bootstrap_servers, registry.url, "aggregator-cluster")
    topics.declare(list(SCHEMAS))
    monkeypatch.setenv("PYTHONPATH", str(own_spark_home(tmp_path / "python")))
    settings = {"spark.master": "local-cluster[2,1,1024]", "advance_when_idle": False, "group_attributes": ""}
    with Process(topics, tmp_path / "checkpoint", free_port(), **settings) as process:
        steps = Steps(topics, process)
        steps.send(version=1)
        steps.wait_for_windows()
        assert process.terminate() == 0
    logs = [log.read_text(encoding="utf-8") for log in (tmp_path / "python" / "pyspark" / "work").glob("*/*/stderr")]
    assert ["Running task" in log for log in logs] == [True, True]
