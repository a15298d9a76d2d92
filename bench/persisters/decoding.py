"""How much of bare fastavro decoding is left when every record is decoded and projected as a persister does it."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Sequence

import fastavro

import isotherm_schemas
import kcql
import workload
from persisters.decode import AvroDecoder, key_decoder
from persisters.project import Projector
from persisters.work import Record
from servicekit.avro import SchemaRegistry
from servicekit.settings import RegistrySettings

_ROUNDS = 5
_WIRE_HEADER_BYTES = 5


def compare(registry: RegistrySettings, chosen: workload.Workload, records: Sequence[Record]) -> dict[str, float]:
    """CPU seconds for a million records, medians of rounds in turn: `bare`, and `projected` rows with id and target."""
    schemas = SchemaRegistry(registry)
    statement = f"INSERT INTO t SELECT * FROM {chosen.topic} WITHINDEXSUFFIX -{{YYYY.MM.DD}}"
    project = Projector(kcql.parse(statement), AvroDecoder(schemas), key_decoder("auto", schemas))
    schema = fastavro.parse_schema(isotherm_schemas.schema(chosen.record, 1))
    values = [record.value[_WIRE_HEADER_BYTES:] for record in records if record.value is not None]

    def bare() -> None:
        for value in values:
            fastavro.schemaless_reader(io.BytesIO(value), schema, None)

    def projected() -> None:
        for record in records:
            project(record)

    runs: dict[str, Callable[[], None]] = {"bare": bare, "projected": projected}
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(_ROUNDS + 1):
        for name, run in runs.items():
            started = time.process_time()
            run()
            if number:
                spent[name].append(1e6 * (time.process_time() - started) / len(records))
    return {name: statistics.median(each) for name, each in spent.items()}
