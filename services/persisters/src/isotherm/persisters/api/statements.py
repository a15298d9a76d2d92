"""What the sinks and the projection ask of a KCQL statement alike."""

from __future__ import annotations

from isotherm.kcql.model import Statement

NULL_VALUES = "behavior.on.null.values"
"""Statement property of Kafka Connect's sinks: what a record without a value does."""
_BEHAVIOURS = ("IGNORE", "DELETE", "FAIL")


def null_behaviour(statement: Statement) -> str:
    """Return what the statement does with a record without a value: IGNORE (the default), DELETE or FAIL."""
    found = {name.lower(): value for name, value in statement.properties.items()}
    return str(found.get(NULL_VALUES, "IGNORE")).upper()


def null_behaviour_problems(statement: Statement) -> list[str]:
    """Return what is wrong with the statement's `behavior.on.null.values`; nothing if it is an allowed value."""
    behaviour = null_behaviour(statement)
    if behaviour in _BEHAVIOURS:
        return []
    return [f"{NULL_VALUES}={behaviour} is not allowed; expected IGNORE, DELETE or FAIL"]


def has_target_per_record(statement: Statement) -> bool:
    """Whether each record names its target itself: a record that names none must not stop the others."""
    return statement.target_from is not None or statement.dynamic_target is not None


def pk_names(statement: Statement) -> list[str]:
    """Return the names of the PK paths in a row: the alias of the field, else the last segment."""
    aliases = {field.path: field.alias for field in statement.fields if field.alias is not None}
    return [
        aliases.get(path, path.segments[-1] if path.segments else path.part.value) for path in statement.primary_key
    ]
