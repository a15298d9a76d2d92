"""`isotherm-console reconcile` has rows of each store read back: what somebody changed is named, then taken back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from control_world import Control
from persisters_stores import ScyllaStore, Store
from persisters_world import BASE_MS, Broker, Persisters, until
from service_process import ServiceProcess
from unreconciled import open_findings

from isotherm.cli.apply import apply, declared_subjects, declared_topics

pytest_plugins = ("persisters_fixtures",)
pytestmark = pytest.mark.integration

DEVICES, WINDOWS = 8, 2


@pytest.fixture(scope="module")
def control(kafka: Any, registry: Any) -> Control:
    """The control topics, and those of readings."""
    made = Control(kafka.bootstrap_servers, registry.url)
    read = ("thermostat.data", "thermostat.late")
    apply(
        made.kafka,
        made.registry,
        topics=[one for one in declared_topics() if one.name in read],
        subjects=[one for one in declared_subjects() if one.name.startswith(read)],
    )
    return made


@pytest.fixture
def reconciler(
    control: Control, broker: Broker, tmp_path: Path, free_port: Callable[[], int]
) -> Iterator[ServiceProcess]:
    """The process, as fast as it may be; its aggregator never comes."""
    port = free_port()
    made = ServiceProcess(tmp_path / "reconcile.log", port)
    chosen = {
        "kafka.bootstrap_servers": control.kafka.bootstrap_servers,
        "registry.url": control.registry.url,
        "http.port": port,
        "reconciliation.windows_topic": broker.topic,
        "reconciliation.readbacks_per_s": 40,
    }
    sets = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    made.launch([sys.executable, "-m", "isotherm.console", "reconcile", *sets])
    yield made
    made.stop()


def found(control: Control, connector: str) -> set[tuple[str, str]]:
    """Device and kind of what is open about the rows of a connector."""
    findings = open_findings(control.kafka, control.registry)
    return {(one["identity"]["device_id"], one["kind"]) for one in findings if one["hop"] == connector}


def test_rows_that_are_changed_or_deleted_are_named_and_taken_back_when_they_are_written_again(
    control: Control, reconciler: ServiceProcess, broker: Broker, store: Store, persister: Persisters
) -> None:
    made = persister(broker, store)
    written = broker.aggregates(DEVICES, range(WINDOWS), revision=BASE_MS)
    made.start()
    until("all committed", lambda: sum(broker.committed(made.group)) == len(written), told=made.log)
    store.hurt("dev-1", "dev-2")
    wanted = {("dev-1", "different"), ("dev-2", "missing")}
    until("both are found", lambda: found(control, made.name) >= wanted, told=reconciler.log)
    # Every row is read back again and again; no other one may be found.
    assert found(control, made.name) == wanted
    newer = broker.aggregates(DEVICES, range(WINDOWS), revision=BASE_MS + 10)
    made.until("all there", lambda: not store.problems([*written, *newer]))
    # In Cassandra a change by hand has the time of today, and wins against every revision of another day.
    left = {("dev-1", "different")} if isinstance(store, ScyllaStore) else set()
    until(
        "only what is wrong is left",
        lambda: found(control, made.name) == left,
        told=lambda: f"{found(control, made.name)}\n{reconciler.log()}",
    )
