"""HoistField, ExtractField, Flatten and SetSchemaMetadata: records wrapped, taken apart, made flat, renamed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from isotherm.connector.transforms.message import Message, Part, Schema, Transform, TransformError
from isotherm.connector.transforms.schemas import STRUCT_NAME, field, fields_of, optional, per_schema, record, shape
from isotherm.connector.transforms.steps import Compiled, required_map, step


def hoist_field(part: Part, name: str) -> Transform:
    """HoistField: the data become the only field of a record; null does, too."""

    def with_schema(schema: Schema) -> Compiled:
        hoisted = {"type": "record", "name": STRUCT_NAME, "fields": [field(name, schema)]}
        return Compiled(hoisted, lambda data, _: {name: data})

    return step(part, with_schema, lambda data, _: {name: data}, skips_null=False, replaces_nulls=False)


def extract_field(part: Part, path: Sequence[str], *, replaces_nulls: bool) -> Transform:
    """ExtractField: the data become one of their fields; null stays null.

    Args:
        part: key or value.
        path: the names of the fields down to it.
        replaces_nulls: see `steps.step`.
    """
    written = ".".join(path)

    def with_schema(schema: Schema) -> Compiled:
        inner: Any = None
        fields = fields_of(schema, "ExtractField")
        for depth, name in enumerate(path):
            inner = next((one["type"] for one in fields if one["name"] == name), None)
            is_last = depth == len(path) - 1
            if inner is None or (not is_last and shape(inner).type != "struct"):
                raise TransformError(f"ExtractField: there is no field {written!r}")
            fields = [] if is_last else fields_of(inner, "ExtractField")
        return Compiled(inner, convert)

    def convert(data: Any, _: Message) -> Any:
        for name in path:
            if data is None:
                return None
            data = required_map(data, "ExtractField").get(name)
        return data

    return step(part, with_schema, convert, skips_null=False, replaces_nulls=replaces_nulls)


def flatten(part: Part, delimiter: str) -> Transform:
    """Flatten: fields of inner records become fields of the record, named by their path."""

    def with_schema(schema: Schema) -> Compiled:
        flat = list(_flat_fields(fields_of(schema, "Flatten"), (), is_optional=shape(schema).optional))
        places = [(delimiter.join(path), path) for path, _ in flat]
        fields = [{**one, "name": delimiter.join(path)} for path, one in flat]
        origins = {name: path[0] if len(path) == 1 else "" for name, path in places}

        def convert(data: Any, _: Message) -> Any:
            found = required_map(data, "Flatten")
            return {name: _at(found, path) for name, path in places}

        return Compiled(record(schema, fields, origins=origins), convert)

    def without_schema(data: Any, _: Message) -> Any:
        return dict(_flat_items(required_map(data, "Flatten"), "", delimiter))

    return step(part, with_schema, without_schema, replaces_nulls=False)


def _flat_fields(
    fields: Sequence[dict[str, Any]], above: tuple[str, ...], *, is_optional: bool
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for one in fields:
        path, found = (*above, one["name"]), shape(one["type"])
        may_be_null = is_optional or found.optional
        if found.type == "struct":
            yield from _flat_fields(found.core["fields"], path, is_optional=may_be_null)
        elif found.type in ("map", "union"):
            raise TransformError(f"Flatten cannot take the {found.type} {'.'.join(path)!r} of a schema")
        elif may_be_null and not found.optional:
            yield path, field(one["name"], optional(one["type"]))
        else:
            yield path, one


def _at(data: Any, path: Sequence[str]) -> Any:
    for name in path:
        if data is None:
            return None
        data = data.get(name)
    return data


def _flat_items(data: dict[str, Any], above: str, delimiter: str) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        full = f"{above}{delimiter}{name}" if above else name
        if isinstance(value, dict):
            yield from _flat_items(value, full, delimiter)
        else:
            yield full, value


def set_schema_metadata(part: Part, name: str | None, version: int | None) -> Transform:
    """SetSchemaMetadata: another name or version of the schema; null without a schema stays as it is."""

    def rename(schema: Schema) -> Schema:
        core = shape(schema).core
        changed = dict(core) if isinstance(core, dict) else {"type": core}
        if name is not None:
            changed |= {"name": name.rpartition(".")[2]} if "fields" in changed else {"connect.name": name}
            if "fields" in changed:
                changed.pop("namespace", None)
                changed |= {"namespace": name.rpartition(".")[0]} if "." in name else {}
        if version is not None:
            changed["connect.version"] = version
        return optional(changed) if shape(schema).optional else changed

    renamed = per_schema(rename)

    def apply(message: Message) -> Message:
        data, schema = part.data(message), part.schema(message)
        if schema is None:
            if data is None:
                return message
            raise TransformError("SetSchemaMetadata needs data with a schema")
        return part.replaced(message, renamed(schema), data)

    return apply


def field_path(text: str, *, is_nested: bool) -> tuple[str, ...]:
    """The names of a path to a nested field (KIP-821): dots between names, backticks round a name with dots.

    Without `is_nested` the text is one name. Raises ValueError for an unclosed backtick.
    """
    if not is_nested:
        return (text,)
    names: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "`":
            end = text.find(".", at)
            end = len(text) if end < 0 else end
            names.append(text[at:end])
            at = end + 1
            continue
        name, at = _quoted(text, at + 1)
        names.append(name)
    if text.endswith("."):
        names.append("")
    return tuple(names)


def _quoted(text: str, start: int) -> tuple[str, int]:
    """The name whose backtick stands before `start`, and where the next one begins."""
    name = ""
    at = start
    while True:
        at = text.find("`", at)
        is_escaped = at > 0 and text[at - 1] == "\\"
        is_last = at == len(text) - 1
        if at < 0 or (is_last and is_escaped):
            raise ValueError(f"{text!r} has a backtick without its partner; a backslash before it makes it plain")
        if is_last:
            return name + text[start:at], at + 1
        if text[at + 1] != ".":
            at += 1
        elif is_escaped:
            name += text[start : at - 1] + "`"
            at += 1
            start = at
        else:
            return name + text[start:at], at + 2
