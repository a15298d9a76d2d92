"""Spark's types of Avro schemas. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_PRIMITIVE: Mapping[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
}


def struct_of(record: Mapping[str, Any]) -> StructType:
    """Return the type of a record. Raises LookupError for a type that no record of an output topic has."""
    return StructType([StructField(field["name"], _type_of(field["type"])) for field in record["fields"]])


def _type_of(avro: Any) -> DataType:
    if isinstance(avro, str):
        return _PRIMITIVE[avro]
    if isinstance(avro, list):
        (branch,) = (one for one in avro if one != "null")
        return _type_of(branch)
    match avro["type"]:
        case "record":
            return struct_of(avro)
        case "array":
            return ArrayType(_type_of(avro["items"]))
        case "map":
            return MapType(StringType(), _type_of(avro["values"]))
    return TimestampType() if avro.get("logicalType") == "timestamp-millis" else _PRIMITIVE[avro["type"]]
