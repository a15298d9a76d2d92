"""What the steps of a persister cost that need no server, beside decoding the same records with bare fastavro."""

from __future__ import annotations

import io
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import fastavro

import isotherm.schemas
import workload
from isotherm import kcql
from isotherm.connector.errors.policies import ErrorPolicy, Policy
from isotherm.persisters.api.record import Record
from isotherm.persisters.buffers.in_flight_batch import InFlightBatch
from isotherm.persisters.records.decoding import AvroDecoder, key_decoder
from isotherm.persisters.records.documents import to_json
from isotherm.persisters.records.projection import Projector
from isotherm.persisters.sinks.hazelcast import items
from isotherm.servicekit.avro import SchemaRegistry
from isotherm.servicekit.settings import RegistrySettings

BARE = "bare fastavro"
PROJECTED = "decoded and projected"
_ROUNDS = 5
_BATCH = 1_000
_WIRE_HEADER_BYTES = 5


def measure(registry: RegistrySettings, chosen: workload.Workload, records: Sequence[Record]) -> dict[str, float]:
    """Return CPU seconds for a million records: medians of rounds, in turn.

    Each step includes the steps that it depends on, unless its name says that it is measured alone.
    """
    schemas = SchemaRegistry(registry)
    statement = f"INSERT INTO t SELECT * FROM {chosen.topic} WITHINDEXSUFFIX -{{YYYY.MM.DD}}"
    decode = AvroDecoder(schemas)
    project = Projector(kcql.parse(statement), decode, key_decoder("auto", schemas))
    policy = ErrorPolicy(Policy.THROW)
    schema = fastavro.parse_schema(isotherm.schemas.schema(chosen.record, 1))
    values = [record.value for record in records if record.value is not None]
    bodies = [value[_WIRE_HEADER_BYTES:] for value in values]
    batches = [records[at : at + _BATCH] for at in range(0, len(records), _BATCH)]
    rows = [row for record in records for row in project(record).rows]
    as_item = items.encoder("JSON")
    spent = _in_turn(
        {
            BARE: lambda: (fastavro.schemaless_reader(io.BytesIO(body), schema, None) for body in bodies),
            "decoded": lambda: map(decode, values),
            PROJECTED: lambda: map(project, records),
            "made batches, one by one": lambda: (InFlightBatch.prepare(batch, policy, project) for batch in batches),
            "made batches, each at once": lambda: (
                InFlightBatch.prepare(one, policy, project, project.try_project_batch) for one in batches
            ),
            "rows to JSON, alone": lambda: (to_json(row.values) for row in rows),
            "rows to Hazelcast's JSON items, alone": lambda: map(as_item, rows),
        }
    )
    return {name: 1e6 * statistics.median(each) / len(records) for name, each in spent.items()}


def _in_turn(runs: dict[str, Callable[[], Iterable[object]]]) -> dict[str, list[float]]:
    """Return the CPU seconds of each round but the first; nothing that a run yields is kept."""
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(_ROUNDS + 1):
        for name, run in runs.items():
            started = time.process_time()
            deque(run(), maxlen=0)
            if number:
                spent[name].append(time.process_time() - started)
    return spent
