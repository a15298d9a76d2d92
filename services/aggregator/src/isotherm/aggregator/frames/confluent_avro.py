"""Avro in Confluent's wire format, inside Spark: each value is decoded with the writer schema that its id names.

Pure functions from columns to columns. Spark's `from_avro` decodes, with one branch of a CASE expression for each
writer schema, so no Python runs per row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import StructType

from isotherm.aggregator.offsets import Partition

HEADER_BYTES = 5
MAX_VALUE_BYTES = 2_147_483_647

_NEW_ID = "isotherm:new-schema-id:"
_NEW_ID_IN_FAILURE = re.compile(rf"{_NEW_ID}([0-9A-F]{{8}})")


@dataclass(frozen=True)
class SchemaIds:
    """The schema ids of a topic: their writer schemas (Avro, as JSON text), and ids that the registry does not have."""

    known: Mapping[int, str] = field(default_factory=dict)
    unknown: frozenset[int] = frozenset()
    closed: bool = False
    """Too many unknown ids were seen: every further new id counts as unknown and does not end the query."""
    known_since: Mapping[int, Mapping[Partition, int]] = field(default_factory=dict)
    """For known ids that were unknown before: the offset in each partition from which on they are known.

    Records before that offset go to the dead-letter topic, so no query may decode them any more.
    """

    def __contains__(self, schema_id: int) -> bool:
        return schema_id in self.known or schema_id in self.unknown


def header(schema_id: int) -> bytes:
    """Return the first five bytes of a value written with this id."""
    return b"\x00" + schema_id.to_bytes(4, "big")


def projected(schema: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Return a reader schema, as JSON text, with only `fields` of a record schema.

    Raises LookupError when the record lacks one of them.
    """
    by_name = {entry["name"]: entry for entry in schema["fields"]}
    missing = [name for name in fields if name not in by_name]
    if missing:
        raise LookupError(f"record {schema['name']} has no field {', '.join(missing)}")
    return json.dumps({**schema, "fields": [by_name[name] for name in fields]})


def is_framed(value: Column) -> Column:
    """Return whether the value has a header with magic byte 0."""
    return (F.length(value) >= HEADER_BYTES) & (F.substring(value, 1, 1) == F.lit(b"\x00"))


def schema_id(value: Column) -> Column:
    """Return the schema id that a framed value names, as a number."""
    return F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("long")


def schema_ids(records: DataFrame) -> list[int]:
    """Return the schema ids that the values (column `value`) name. Runs a Spark job."""
    value = F.col("value")
    rows = records.where(is_framed(value)).select(schema_id(value).alias("id")).distinct().collect()
    return sorted(row["id"] for row in rows)


def is_known(value: Column, ids: SchemaIds) -> Column:
    """Return whether the value names an id whose writer schema is known at the record's offset."""
    head = F.substring(value, 1, HEADER_BYTES)
    known = head.isin([header(known) for known in ids.known if known not in ids.known_since])
    for late, offsets in sorted(ids.known_since.items()):
        known = known | ((head == F.lit(header(late))) & ~_is_before(offsets))
    return known


def _is_before(offsets: Mapping[Partition, int]) -> Column:
    """Return whether a record lies before the offset given for its partition; false for a partition without one."""
    entries = [F.lit(part) for (topic, number), end in offsets.items() for part in (f"{topic}-{number}", end)]
    if not entries:
        return F.lit(False)
    partition = F.concat_ws("-", "topic", "partition")
    return F.coalesce(F.col("offset") < F.try_element_at(F.create_map(*entries), partition), F.lit(False))


def decode(value: Column, ids: SchemaIds, reader: str, shape: StructType) -> Column:
    """Return the decoded value as a struct of the reader's fields; every field is null when it cannot be decoded.

    A value whose id is neither known nor unknown ends the query; `new_schema_ids` finds the id in the text of the
    failure. `shape` is the reader schema as Spark's type. With `ids.known_since` the records need the columns `topic`,
    `partition` and `offset`, too.
    """
    head, body = F.substring(value, 1, HEADER_BYTES), F.substring(value, HEADER_BYTES + 1, MAX_VALUE_BYTES)
    options = {"avroSchema": reader, "mode": "PERMISSIVE"}
    nothing = F.lit(None).cast(shape)
    cases = F.when(value.isNull() | ~is_framed(value), nothing)
    for late, offsets in sorted(ids.known_since.items()):
        cases = cases.when((head == F.lit(header(late))) & _is_before(offsets), nothing)
    for known, writer in sorted(ids.known.items()):
        cases = cases.when(head == F.lit(header(known)), from_avro(body, writer, options))
    if ids.closed:
        return cases.otherwise(nothing)
    if ids.unknown:
        cases = cases.when(head.isin([header(unknown) for unknown in sorted(ids.unknown)]), nothing)
    new_id = F.raise_error(F.concat(F.lit(_NEW_ID), F.hex(F.substring(value, 2, 4))))
    return cases.otherwise(new_id.cast(shape))


def new_schema_ids(failure: str) -> list[int]:
    """Return the schema ids for which a query ended, as the text of its failure names them.

    A failing expression can hand nothing else to the driver: Spark reports the text that `raise_error` was given.
    """
    return sorted({int(digits, 16) for digits in _NEW_ID_IN_FAILURE.findall(failure)})


def encode(record: Column, writer: Mapping[str, Any], writer_id: int) -> Column:
    """Return the struct `record` as bytes in the wire format."""
    return F.concat(F.lit(header(writer_id)), to_avro(record, json.dumps(writer)))
