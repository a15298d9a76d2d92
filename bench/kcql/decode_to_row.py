"""How much of bare fastavro decoding is left when every record is also projected by KCQL.

    python bench/kcql/decode_to_row.py [RECORDS]

Decodes the same six-field record RECORDS times (default 200,000), bare and with each statement, five rounds in turn,
and prints the best CPU time of each. Goal: decode and row at least 0.6 of bare decoding.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

import fastavro
from fastavro.types import Schema

from isotherm.kcql import Record, compile_projection, parse

SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "device_id", "type": "string"},
        {"name": "metric", "type": "string"},
        {"name": "value", "type": "double"},
        {"name": "unit", "type": ["null", "string"]},
        {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "attributes", "type": {"type": "map", "values": "string"}},
    ],
}
VALUE = {
    "device_id": "dev-1",
    "metric": "temperature",
    "value": 21.5,
    "unit": "Cel",
    "event_time": datetime(2026, 1, 31, tzinfo=UTC),
    "attributes": {"room": "kitchen"},
}
ROWS = (
    "INSERT INTO a SELECT * FROM t",
    "INSERT INTO a SELECT device_id, metric, value, event_time AS ts FROM t",
    "INSERT INTO a SELECT value AS v, * FROM t IGNORE attributes",
    "INSERT INTO a SELECT attributes.room AS room, device_id, value FROM t",
)
DOCUMENT = "UPSERT INTO a SELECT * FROM t PK device_id, metric, event_time WITHINDEXSUFFIX -{YYYY.MM.DD}"
ROUNDS = 5


def bare(schema: Schema, raw: bytes, records: int) -> Callable[[], None]:
    """Decoding alone."""

    def run() -> None:
        for _ in range(records):
            fastavro.schemaless_reader(io.BytesIO(raw), schema)

    return run


def projected(statement: str, schema: Schema, raw: bytes, records: int) -> Callable[[], None]:
    """Decoding and the row; with a PK also the id and the target."""
    projection = compile_projection(parse(statement)[0], schema=SCHEMA)
    row, document_id, target = projection.row, projection.id, projection.target
    has_key = bool(projection.statement.primary_key)

    def run() -> None:
        for offset in range(records):
            value = fastavro.schemaless_reader(io.BytesIO(raw), schema)
            record = Record("dev-1", value, (), "t", 0, offset, 1769817600000 + offset)
            row(record)
            if has_key:
                document_id(record)
                target(record, record.timestamp_ms)

    return run


def main() -> None:
    """Run and print."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    schema = fastavro.parse_schema(SCHEMA)
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, VALUE)
    raw = buffer.getvalue()
    runs = {"bare decoding": bare(schema, raw, records)}
    runs |= {statement: projected(statement, schema, raw, records) for statement in (*ROWS, DOCUMENT)}
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            started = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - started)
    for name, seconds in best.items():
        print(f"{best['bare decoding'] / seconds:5.2f} of bare  {records / seconds:9,.0f}/s  {name}")


if __name__ == "__main__":
    main()
