"""Which types of columns Iceberg lets become one. Pure.

Source: the table format's specification, "Schema Evolution": int to long, float to double, a decimal to more digits.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from isotherm.persisters.sinks.arrow.tables import united

_WIDER: Mapping[pa.DataType, pa.DataType] = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}


def united_columns(known: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """Return the columns for rows of both schemas, or None if a column of one cannot become that of the other.

    Arrow unites more than Iceberg may promote: a long and a double, an int and a decimal.
    """
    wider = united(known, other)
    if wider is None:
        return None
    is_promoted = all(
        _promotes(schema.field(name).type, wider.field(name).type) for schema in (known, other) for name in schema.names
    )
    return wider if is_promoted else None


def _promotes(narrow: pa.DataType, wide: pa.DataType) -> bool:
    if narrow == wide or _WIDER.get(narrow) == wide:
        return True
    kinds = pa.types
    if kinds.is_decimal(narrow) and kinds.is_decimal(wide):
        return bool(narrow.scale == wide.scale and narrow.precision <= wide.precision)
    if kinds.is_list(narrow) and kinds.is_list(wide):
        return _promotes(narrow.value_type, wide.value_type)
    if kinds.is_map(narrow) and kinds.is_map(wide):
        # Iceberg's keys never change.
        return narrow.key_type == wide.key_type and _promotes(narrow.item_type, wide.item_type)
    if kinds.is_struct(narrow) and kinds.is_struct(wide):
        return all(_promotes(one.type, wide.field(one.name).type) for one in narrow)
    return False
