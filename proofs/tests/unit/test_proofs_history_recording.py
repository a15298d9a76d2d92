"""What the recorder writes of topics' values, ledgers, offsets, counters and rows."""

from __future__ import annotations

import io
import json
import struct
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.error import HTTPError

import fastavro
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from isotherm.proofs.history.format import COAP, MQTT, events
from isotherm.proofs.history.recording.avro_values import AvroValues
from isotherm.proofs.history.recording.clients import record_coap, record_mqtt
from isotherm.proofs.history.recording.counters import record_counters
from isotherm.proofs.history.recording.groups import OffsetSampler, counts_of
from isotherm.proofs.history.recording.history_file import HistoryFile, plain
from isotherm.proofs.history.recording.stores import RowWriter

SCHEMA = {
    "type": "record",
    "name": "Reading",
    "isotherm.identity": ["device_id", "event_time"],
    "fields": [
        {"name": "device_id", "type": "string"},
        {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "value", "type": "double"},
    ],
}


def lines(path: Path) -> list[dict[str, Any]]:
    return [event for _, event in events(path)]


@pytest.fixture
def registry() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"schema": json.dumps(SCHEMA)}).encode()
            self.send_response({"7": 200, "8": 404}.get(self.path.removeprefix("/api/schemas/ids/"), 500))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/api"
    server.shutdown()
    server.server_close()


def test_values_are_decoded_by_the_writers_schema_with_times_as_epoch_ms(registry: str) -> None:
    body = io.BytesIO()
    record = {"device_id": "d", "event_time": 1_700_000_000_123, "value": float("nan")}
    fastavro.schemaless_writer(body, fastavro.parse_schema(SCHEMA), record)
    avro = AvroValues(registry)
    decoded = avro.decode(struct.pack(">bI", 0, 7) + body.getvalue())
    assert decoded is not None
    assert decoded.value == {"device_id": "d", "event_time": 1_700_000_000_123, "value": "nan"}
    assert decoded.identity == ["d", 1_700_000_000_123]
    assert avro.decode(b"{}") is None
    assert avro.decode(struct.pack(">bI", 0, 8) + body.getvalue()) is None
    with pytest.raises(HTTPError):
        avro.decode(struct.pack(">bI", 0, 9) + body.getvalue())
    assert avro.decode(struct.pack(">bI", 0, 7) + b"\x08d") is None


def test_values_of_all_stores_have_one_form() -> None:
    at = datetime(2026, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC)
    assert plain({"zoned": at, "naive": at.replace(tzinfo=None)}) == {"zoned": 1767225600001, "naive": 1767225600001}
    assert plain([float("inf"), b"\xff", (1, None)]) == ["inf", "ff", [1, None]]


def test_ledgers_become_publishes_and_answers(tmp_path: Path) -> None:
    common = {"device_id": "d", "metric": "t", "event_time_ms": 5, "sequence": 1, "time_ms": 6, "qos": 1}
    mqtt, coap = tmp_path / "mqtt", tmp_path / "coap"
    told = [{"event": "published", "value": 2.5, **common}, {"event": "acknowledged", **common}]
    told += [{"event": "connection-lost", "devices": ["d"], "time_ms": 7}, {"event": "end"}]
    mqtt.write_text("".join(json.dumps(line) + "\n" for line in [{"event": "start"}, *told]))
    coap.write_text(json.dumps({"event": "notified", "value": 1.0, **common}) + "\n" + '{"event":"notif')
    with HistoryFile(tmp_path / "history") as history:
        record_mqtt(history, [mqtt])
        record_coap(history, [coap])
    published, acknowledged, lost, ended, notified = lines(tmp_path / "history")
    assert (published["event"], published["id"], published["value"]) == ("published", ["d", "t", 5, 1], {"value": 2.5})
    assert (acknowledged["event"], acknowledged["via"], acknowledged["qos"]) == ("acknowledged", MQTT, 1)
    assert lost == {"event": "connection-lost", "client": "d", "time": 7}
    assert ended == {"event": "clients-end", "via": MQTT}
    assert (notified["event"], notified["via"], notified["qos"]) == ("published", COAP, 0)


def test_counts_come_from_the_metadata_of_offsets() -> None:
    counts = counts_of('{"v":1,"read":5,"written":2,"dead_lettered":{"a":1,"b":1},"filtered":{"expired":1}}')
    assert counts == {"read": 5, "written": 2, "dead_lettered": 2, "filtered": 1, "skipped": 0}
    assert counts_of("") is None
    assert counts_of("[1]") is None


def test_the_last_offsets_are_asked_for_until_nothing_changes(tmp_path: Path) -> None:
    """A task commits a moment after its last row is there; a coordinator may not answer at once."""
    answers: list[int | None] = [5, 5, None, 5, 7, 7, 7, 7, 9]

    class Group:
        """A consumer that is told another offset each time."""

        def list_topics(self, timeout: float) -> Any:
            return SimpleNamespace(topics={"t": SimpleNamespace(partitions=[0])})

        def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
            offset = answers.pop(0)
            if offset is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return [TopicPartition(one.topic, one.partition, offset) for one in partitions]

        def close(self) -> None:
            closed.append(self)

    sampler = OffsetSampler({}, ["g"], interval_s=0.001)
    for consumer in sampler._consumers.values():
        consumer.close()
    closed: list[Group] = []
    sampler._consumers = {"g": cast(Any, Group())}
    sampler._thread = threading.Thread(target=lambda: None)
    sampler.start()
    sampler.stop()
    with HistoryFile(tmp_path / "history") as history:
        sampler.write(history)
    assert [line["offset"] for line in lines(tmp_path / "history")] == [5, 7]
    assert answers == [9]
    assert len(closed) == 1


def test_counters_of_several_labels_are_added(tmp_path: Path) -> None:
    page = """# TYPE isotherm_mqtt_proxy_readings_stored_total counter
isotherm_mqtt_proxy_readings_stored_total{topic="a",qos="1"} 3
isotherm_mqtt_proxy_readings_stored_total{topic="a",qos="2"} 4
"""
    with HistoryFile(tmp_path / "history") as history:
        record_counters(history, MQTT, lambda _page: page)
        record_counters(history, MQTT, lambda _page: None)
    assert lines(tmp_path / "history") == [
        {"event": "counter", "service": MQTT, "name": "stored", "label": "a", "value": 7}
    ]


def test_rows_have_the_keys_of_their_records_where_the_order_matters(tmp_path: Path) -> None:
    with HistoryFile(tmp_path / "history") as history:
        RowWriter(history, "queue", ["source", "n"], {("s", "1"): "key"}).write([{"source": "s", "n": 1}])
        RowWriter(history, "table", ["device_id"]).write([])
    row, end, empty = lines(tmp_path / "history")
    assert (row["key"], row["position"], row["id"]) == ("key", 0, ["s", 1])
    assert end == {"event": "store-end", "store": "queue", "rows": 1}
    assert empty["rows"] == 0
