"""How a sink reads the statements: separator of ids, unit of TTL, retention."""

from __future__ import annotations

from dataclasses import dataclass

from isotherm.kcql.model import Statement


@dataclass(frozen=True)
class Conventions:
    """What differs between sinks in reading a statement."""

    pk_separator: str = "-"
    ttl_unit_ms: int | None = None
    """One unit of TTL in milliseconds; None if the sink has no TTL."""
    retention_ms: int | None = None
    """Time after which dated targets (WITHINDEXSUFFIX) are deleted, in milliseconds; None for never."""

    def lifetime_ms(self, statement: Statement) -> int | None:
        """Return how long after its event time a row of `statement` is of use, in milliseconds; None for ever."""
        if statement.ttl is not None and self.ttl_unit_ms is not None:
            return statement.ttl * self.ttl_unit_ms
        is_dated = statement.index_suffix is not None and statement.target_from is None
        return self.retention_ms if is_dated else None
