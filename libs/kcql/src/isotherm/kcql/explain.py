"""Explains a statement: as a JSON object, and in words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from isotherm.kcql.dates import compile_pattern, format_suffix
from isotherm.kcql.model import (
    SYS_TIME,
    Field,
    Part,
    Path,
    Statement,
)
from isotherm.kcql.syntax.condition_json import condition_json
from isotherm.kcql.syntax.condition_text import write_condition
from isotherm.kcql.syntax.names import write_field, write_path

_EXAMPLE_TIME = datetime(2026, 1, 31, 14, 5, 9, tzinfo=UTC)


def explain_json(statement: Statement) -> dict[str, Any]:
    """The statement as a JSON object; every key is always present."""
    return {
        "mode": statement.mode,
        "target": statement.target,
        "target_from": None if statement.target_from is None else _place(statement.target_from, part_first=True),
        "source": statement.source,
        "fields": [_field(field) for field in statement.fields],
        "where": None if statement.where is None else condition_json(statement.where),
        "ignore": [list(path) for path in statement.ignore],
        "primary_key": [_place(path) for path in statement.primary_key],
        "format": statement.format,
        "store_as": None
        if statement.store_as is None
        else {"type": statement.store_as.type, "parameters": dict(statement.store_as.parameters)},
        "index_suffix": statement.index_suffix,
        "ttl": statement.ttl,
        "batch": statement.batch,
        "limit": statement.limit,
        "autocreate": statement.autocreate,
        "autoevolve": statement.autoevolve,
        "with_structure": statement.with_structure,
        "unwrap": statement.unwrap,
        "timestamp": _timestamp(statement.timestamp),
        "timestamp_unit": statement.timestamp_unit,
        "with_key": [_place(path) for path in statement.with_key],
        "key_delimiter": statement.key_delimiter,
        "tags": [{"path": list(tag.path), "alias": tag.alias, "constant": tag.constant} for tag in statement.tags],
        "partition_by": [_place(path) for path in statement.partition_by],
        "no_partition": statement.no_partition,
        "converter": statement.converter,
        "doc_type": statement.doc_type,
        "pipeline": statement.pipeline,
        "regex": statement.regex,
        "type": statement.type,
        "dynamic_target": None if statement.dynamic_target is None else list(statement.dynamic_target),
        "incremental_mode": statement.incremental_mode,
        "subscription": statement.subscription,
        "jms_selector": statement.jms_selector,
        "properties": dict(statement.properties),
    }


def _place(path: Path, *, part_first: bool = False) -> dict[str, Any]:
    place: dict[str, Any] = {"path": list(path.segments), "part": path.part.value}
    return dict(reversed(place.items())) if part_first else place


def _field(field: Field) -> dict[str, Any]:
    path = [*field.path.segments, *(["*"] if field.wildcard else [])]
    return {"path": path, "alias": field.alias, "part": field.path.part.value}


def _timestamp(path: Path | None) -> Any:
    if path is None:
        return None
    return "sys_time()" if path == SYS_TIME else _place(path)


def explain_words(statement: Statement) -> str:
    """The statement's effect in words: a sentence and a list."""
    lines = [_sentence(statement), "  fields:"]
    lines += [f"    {line}" for line in _field_lines(statement)]
    lines += [f"  {name}: {value}" for name, value in _details(statement) if value]
    return "\n".join(lines)


def _sentence(statement: Statement) -> str:
    source = "any topic of the connector" if statement.source == "*" else f'"{statement.source}"'
    which = "" if statement.where is None else " that meets the condition"
    if statement.mode is None:
        return f"Reads every record of {source}{which}."
    verb = "inserted into" if statement.mode == "INSERT" else "upserted into"
    return f"Every record of {source}{which} is {verb} {_target(statement)}."


def _target(statement: Statement) -> str:
    origin = statement.target_from
    if statement.dynamic_target is not None:
        target = f"the target that its field {write_path(Path(Part.VALUE, statement.dynamic_target))} names"
    elif origin is None:
        target = f'"{statement.target}"'
    elif origin.part is Part.TOPIC:
        target = "the target named as its MQTT topic, with _ for /"
    else:
        target = f"the target that {_place_in_words(origin)} names"
    suffix = statement.index_suffix
    if suffix is None:
        return target
    if compile_pattern(suffix).granularity_ms is None:
        return f'{target} with the suffix "{suffix}"'
    example = format_suffix(suffix, _EXAMPLE_TIME)
    moment = f"{_EXAMPLE_TIME:%Y-%m-%d %H:%M:%S} UTC"
    return f'{target} with the suffix "{suffix}" of its event time ("{example}" for {moment})'


def _place_in_words(path: Path) -> str:
    part = {Part.VALUE: "value", Part.KEY: "key", Part.HEADER: "header"}.get(path.part)
    if part is None:
        return f"its {path.part}"
    if not path.segments:
        return f"its whole {part}"
    return (
        f'"{".".join(path.segments)}" of its {part}' if part != "header" else f'its header "{".".join(path.segments)}"'
    )


def _field_lines(statement: Statement) -> list[str]:
    lines = []
    others = " other" if len(statement.fields) > 1 else ""
    for field in statement.fields:
        if field.wildcard:
            level = "the value" if field.path == Path(Part.VALUE) else write_path(field.path)
            lines.append(f"{write_field(field)}: all{others} fields of {level}")
        elif field.path.part is Part.FUNCTION:
            lines.append(f"{write_path(field.path)} as {field.alias or field.natural_name}: the connector's function")
        else:
            lines.append(f"{write_path(field.path)} as {field.alias or field.natural_name}")
    return lines


def _details(statement: Statement) -> list[tuple[str, str | None]]:
    def paths(places: tuple[Path, ...]) -> str:
        return ", ".join(write_path(path) for path in places)

    ignored = tuple(Path(Part.VALUE, path) for path in statement.ignore)
    store_as = statement.store_as
    parameters = ", ".join(f"{k}={v}" for k, v in store_as.parameters.items()) if store_as else ""
    tags = [
        f"{'.'.join(tag.path)}={tag.constant}"
        if tag.constant is not None
        else write_field(Field(Path(Part.VALUE, tag.path), tag.alias))
        for tag in statement.tags
    ]
    key = f"{paths(statement.with_key)}, joined by {statement.key_delimiter!r}" if statement.with_key else None
    unused = statement.key_delimiter if "KEYDELIMITER" in statement.clauses and not statement.with_key else None
    time = None
    if statement.timestamp is not None:
        in_unit = "" if statement.timestamp == SYS_TIME else f", in {statement.timestamp_unit.lower()}"
        time = "Kafka's timestamp" if statement.timestamp == SYS_TIME else write_path(statement.timestamp) + in_unit
    return [
        ("condition", None if statement.where is None else write_condition(statement.where)),
        ("left out", paths(ignored)),
        ("structure", "nesting and arrays stay" if statement.with_structure else None),
        ("primary key", f"the values of {paths(statement.primary_key)}" if statement.primary_key else None),
        ("event time", time),
        ("format", statement.format),
        ("value only, without its schema", "yes" if statement.unwrap else None),
        ("stored as", f"{store_as.type}{f' ({parameters})' if parameters else ''}" if store_as else None),
        ("created when missing", "yes" if statement.autocreate else None),
        ("columns added when missing", "yes" if statement.autoevolve else None),
        ("time to live", str(statement.ttl) if statement.ttl else None),
        ("batch", str(statement.batch) if statement.batch else None),
        ("limit", str(statement.limit) if statement.limit else None),
        ("Kafka key", key),
        ("key delimiter", None if unused is None else f"{unused!r}, without effect: there is no WITHKEY"),
        ("tags", ", ".join(tags)),
        ("partitioned by", "nothing" if statement.no_partition else paths(statement.partition_by)),
        ("converter", statement.converter),
        ("document type", statement.doc_type),
        ("pipeline", statement.pipeline),
        ("sources that match", statement.regex),
        ("type", statement.type),
        ("incremental mode", statement.incremental_mode),
        ("subscription", statement.subscription),
        ("selector", statement.jms_selector),
        ("properties", ", ".join(f"{k}={v!r}" for k, v in statement.properties.items())),
    ]
