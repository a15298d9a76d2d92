"""The tables that a connector writes to: found, created, and given the columns of further schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, Transform
from sqlalchemy.exc import IntegrityError

from isotherm.connector.config.validation import Validated
from isotherm.persisters.api.plan import Plan
from isotherm.persisters.api.sink import RowError, SinkConfigError
from isotherm.persisters.api.statements import has_target_per_record
from isotherm.persisters.sinks.arrow.periods import NONE
from isotherm.persisters.sinks.arrow.tables import Columns
from isotherm.persisters.sinks.iceberg.catalogs import translated
from isotherm.persisters.sinks.iceberg.connector_keys import PREFIX

IDENTITY, REVISION = "isotherm.identity", "isotherm.revision"
"""Properties of a table: the columns by which rows are the same, a list, and the column that says which one stays."""
_PERIODS: Mapping[str, tuple[Transform[Any, Any], str]] = {
    "HOUR": (HourTransform(), "hour"),
    "DAY": (DayTransform(), "day"),
    "MONTH": (MonthTransform(), "month"),
}


class Tables:
    """The tables of a connector in its catalog; safe for several threads."""

    def __init__(self, config: Validated, catalog: Catalog, columns: Columns) -> None:
        self._config = config
        self._catalog = catalog
        self._columns = columns
        self._namespace = config.text(f"{PREFIX}.namespace")
        self._period = config.text(f"{PREFIX}.partition.by").upper()

    def identifier(self, target: str) -> tuple[str, ...]:
        """Return namespace and name of a target: `namespace.table`, else the table in the connector's namespace."""
        parts = tuple(target.split(".")) if "." in target else (self._namespace, target)
        if not all(parts):
            raise RowError("target", f"{target!r} is no name of a table")
        return parts

    def load(self, target: str, plan: Plan | None) -> Table:
        """Return a target's table as it is now; create it if the statement of `plan` says so.

        Raises RowError if only the row names the table and it cannot be used, SinkConfigError if the statement does,
        Unavailable.
        """
        try:
            return self._loaded(target, plan)
        except (SinkConfigError, RowError) as error:
            if plan is None or not has_target_per_record(plan.statement):
                raise SinkConfigError(str(error)) from error
            raise RowError("target", str(error)) from error

    def _loaded(self, target: str, plan: Plan | None) -> Table:
        identifier = self.identifier(target)
        with translated(self._config):
            try:
                return self._catalog.load_table(identifier)
            except NoSuchTableError:
                if plan is None or not plan.statement.autocreate:
                    raise SinkConfigError(
                        f"there is no table {'.'.join(identifier)}; create it, or say AUTOCREATE"
                    ) from None
            self._create(identifier, plan)
            return self._catalog.load_table(identifier)

    def _create(self, identifier: tuple[str, ...], plan: Plan) -> None:
        # Another task may be quicker. A catalog in a database says so by a duplicate key.
        with suppress(NamespaceAlreadyExistsError, IntegrityError):
            self._catalog.create_namespace_if_not_exists(identifier[:-1])
        schema = self._columns.schema(plan)
        # Each commit writes the table's metadata anew, and leaves the former one.
        properties = {
            "write.parquet.compression-codec": "zstd",
            "write.metadata.delete-after-commit.enabled": "true",
        }
        if plan.identity_columns:
            properties[IDENTITY] = json.dumps(plan.identity_columns)
        if plan.revision_column is not None:
            properties[REVISION] = plan.revision_column
        with (
            suppress(TableAlreadyExistsError, CommitFailedException),
            self._catalog.create_table_transaction(identifier, schema, properties=properties) as creation,
        ):
            if self._period != NONE:
                transform, name = _PERIODS[self._period]
                with creation.update_spec() as spec:
                    spec.add_field(self._time_column(plan), transform, f"event_{name}")

    def _time_column(self, plan: Plan) -> str:
        if plan.event_time_column is None:
            raise SinkConfigError(
                f"{PREFIX}.partition.by: {self._period} needs the field of the event time among the columns; "
                f"use {NONE}, or select it"
            )
        return plan.event_time_column


def missing_columns(table: Table, schema: pa.Schema) -> Sequence[str]:
    """Return the columns of a schema that a table does not have."""
    known = {field.name for field in table.schema().fields}
    return [name for name in schema.names if name not in known]
