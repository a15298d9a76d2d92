"""The records of the control topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import isotherm.schemas
from isotherm.connector.config.definitions import (
    Definition,
    Importance,
    Key,
    Type,
    common_keys,
)
from isotherm.connector.config.files import from_mapping
from isotherm.connector.distributed.publishing import (
    CONNECTORS,
    PLUGIN_SCHEMA,
    PLUGINS,
    announcements,
    connector_record,
    plugin_record,
)
from isotherm.servicekit.avro import encoder

DEFINITION = Definition(
    "isotherm.X",
    "sink",
    (*common_keys("isotherm.X"), Key("p", Type.PASSWORD, None, "Secret.", Importance.LOW, ("q",), ("a", "b"))),
    aliases=("x",),
    kcql_clauses=frozenset(("TTL", "PK")),
)


def test_a_plugin_fits_its_schema_and_names_everything() -> None:
    record = plugin_record(DEFINITION, "1.2")
    assert encoder(PLUGIN_SCHEMA, 1)(record)
    assert (record["aliases"], record["kcql_clauses"], record["version"]) == (["x"], ["PK", "TTL"], "1.2")
    assert record["keys"][-1]["allowed"] == ["a", "b"]
    assert record["keys"][-1]["aliases"] == ["q"]
    bounds = {key["name"]: (key["minimum"], key["maximum"]) for key in record["keys"]}
    assert (bounds["tasks.max"], bounds["p"]) == ((1, None), (None, None))


def test_a_connector_fits_its_schema_and_tells_no_secret() -> None:
    config = from_mapping(
        {
            "name": "n",
            "connector.class": "x",
            "db.password": "hunter2",
            "api.key": "${env:KEY}",
            "topics": "t",
            "q": "in-clear",
            "url": "http://elastic:pw12345@es:9200",
        }
    )
    record = connector_record(config, worker_group="g", now_ms=5, is_secret=DEFINITION.is_secret)
    assert encoder(isotherm.schemas.schema("ConnectorConfig", 2), 1)(record)
    assert record["config"]["db.password"] == "******"
    assert record["config"]["api.key"] == "${env:KEY}"
    assert record["config"]["q"] == "******"
    assert record["config"]["url"] == "http://elastic:******@es:9200"
    assert (record["mode"], record["target_state"], record["worker_group"]) == ("standalone", "STARTED", "g")


def test_a_start_keeps_what_is_wanted_and_repeats_nothing() -> None:
    config = from_mapping({"name": "n", "connector.class": "x"})
    said: dict[str, dict[str, Any]] = {}

    class Registry:
        def encoder(self, topic: str, _schema: object) -> Callable[[dict[str, Any]], bytes]:
            def encode(record: dict[str, Any]) -> bytes:
                said[topic] = record
                return b""

            return encode

    def start(known: dict[str, Any] | None) -> list[str]:
        said.clear()
        return [
            topic for topic, _, _ in announcements(cast(Any, Registry()), config, DEFINITION, version="1", known=known)
        ]

    assert start(None) == [CONNECTORS, PLUGINS]
    paused = {**said[CONNECTORS], "target_state": "PAUSED", "restart_count": 2, "task_restarts": {"0": 1}}
    assert start(paused) == [PLUGINS]
    assert start({**paused, "config": {}}) == [CONNECTORS, PLUGINS]
    assert {**said[CONNECTORS], "updated_at": paused["updated_at"]} == paused
