"""Avro in Confluent's wire format, inside Spark: values decoded by the schema id that each names.

Pure functions from columns to columns; nothing here talks to a server. Spark's `from_avro` does the reading, with one
branch of a CASE for each writer schema, so no Python runs per row.
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

Partition = tuple[str, int]

HEADER_BYTES = 5
MAX_VALUE_BYTES = 2_147_483_647

_NEW_ID = "isotherm:new-schema-id:"
_NEW_ID_FOUND = re.compile(rf"{_NEW_ID}([0-9A-F]{{8}})")


@dataclass(frozen=True)
class SchemaIds:
    """What is known of the schema ids in a topic: writer schemas (Avro, as JSON text) and ids that nobody knows."""

    known: Mapping[int, str] = field(default_factory=dict)
    unknown: frozenset[int] = frozenset()
    closed: bool = False
    """Too many unknown ids were seen: any further one counts as unknown and does not end the query."""
    since: Mapping[int, Mapping[Partition, int]] = field(default_factory=dict)
    """Of known ids that were unknown once: the offset in each partition from which on they are known.

    Records before it are dead letters already, or are about to be, so that no query may decode them any more.
    """

    def __contains__(self, schema_id: int) -> bool:
        return schema_id in self.known or schema_id in self.unknown


def header(schema_id: int) -> bytes:
    """The first five bytes of a value written with this id."""
    return b"\x00" + schema_id.to_bytes(4, "big")


def projected(schema: Mapping[str, Any], fields: Sequence[str]) -> str:
    """A reader schema, as JSON text, with only `fields` of a record schema.

    Raises LookupError when the record lacks one.
    """
    by_name = {entry["name"]: entry for entry in schema["fields"]}
    missing = [name for name in fields if name not in by_name]
    if missing:
        raise LookupError(f"record {schema['name']} has no field {', '.join(missing)}")
    return json.dumps({**schema, "fields": [by_name[name] for name in fields]})


def is_framed(value: Column) -> Column:
    """Whether there is a header with magic byte 0."""
    return (F.length(value) >= HEADER_BYTES) & (F.substring(value, 1, 1) == F.lit(b"\x00"))


def schema_id(value: Column) -> Column:
    """The schema id that a framed value names, as a number."""
    return F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("long")


def schema_ids(records: DataFrame) -> list[int]:
    """The schema ids that the values (column `value`) name; runs a job."""
    value = F.col("value")
    rows = records.where(is_framed(value)).select(schema_id(value).alias("id")).distinct().collect()
    return sorted(row["id"] for row in rows)


def is_known(value: Column, ids: SchemaIds) -> Column:
    """Whether the value names an id of which the writer schema is known where the record stands."""
    head = F.substring(value, 1, HEADER_BYTES)
    known = head.isin([header(known) for known in ids.known if known not in ids.since])
    for late, offsets in sorted(ids.since.items()):
        known = known | ((head == F.lit(header(late))) & ~_stands_before(offsets))
    return known


def _stands_before(offsets: Mapping[Partition, int]) -> Column:
    """Whether a record stands before the offset that its partition has here; its partition may have none."""
    entries = [F.lit(part) for (topic, number), end in offsets.items() for part in (f"{topic}-{number}", end)]
    if not entries:
        return F.lit(False)
    place = F.concat_ws("-", "topic", "partition")
    return F.coalesce(F.col("offset") < F.try_element_at(F.create_map(*entries), place), F.lit(False))


def decode(value: Column, ids: SchemaIds, reader: str, shape: StructType) -> Column:
    """The decoded value, as a struct of the reader's fields; every field is null when it cannot be read.

    A value that names an id about which nothing is known yet ends the query: `new_schema_ids` finds the id in the
    failure's text. `shape` is the reader schema as Spark sees it. With `ids.since` the columns `topic`, `partition` and
    `offset` are needed too.
    """
    head, body = F.substring(value, 1, HEADER_BYTES), F.substring(value, HEADER_BYTES + 1, MAX_VALUE_BYTES)
    options = {"avroSchema": reader, "mode": "PERMISSIVE"}
    nothing = F.lit(None).cast(shape)
    cases = F.when(value.isNull() | ~is_framed(value), nothing)
    for late, offsets in sorted(ids.since.items()):
        cases = cases.when((head == F.lit(header(late))) & _stands_before(offsets), nothing)
    for known, writer in sorted(ids.known.items()):
        cases = cases.when(head == F.lit(header(known)), from_avro(body, writer, options))
    if ids.closed:
        return cases.otherwise(nothing)
    if ids.unknown:
        cases = cases.when(head.isin([header(unknown) for unknown in sorted(ids.unknown)]), nothing)
    new_id = F.raise_error(F.concat(F.lit(_NEW_ID), F.hex(F.substring(value, 2, 4))))
    return cases.otherwise(new_id.cast(shape))


def new_schema_ids(failure: str) -> list[int]:
    """The schema ids for which a query ended, found in the text of its failure."""
    return sorted({int(found, 16) for found in _NEW_ID_FOUND.findall(failure)})


def encode(record: Column, writer: Mapping[str, Any], writer_id: int) -> Column:
    """The struct `record` as bytes in the wire format."""
    return F.concat(F.lit(header(writer_id)), to_avro(record, json.dumps(writer)))
