"""The page of connectors: every connector class with its keys and the KCQL clauses that it uses."""

from __future__ import annotations

from collections.abc import Iterator

from isotherm.coap_ingest.connectors import connector_keys as coap_keys
from isotherm.connector.config.definitions import Definition, Key
from isotherm.mqtt_proxy.bridge import connector_class as bridge
from isotherm.persisters.sinks.catalog import installed_sinks
from isotherm.reference import markdown

_INTRODUCTION = """A connector's configuration is a file of Java properties, JSON or TOML, or the body of
`PUT /connectors/NAME/config`. Keys of the old connectors work as they are printed in their documentation;
the column "also" lists these names. A key that a class does not know gives a notice with the
nearest known key; a value that is not allowed is an error."""


def definitions() -> list[Definition]:
    """Every connector class of the suite: sources first."""
    return [coap_keys.DEFINITION, bridge.DEFINITION, *(kind.definition for kind in installed_sinks().values())]


def text() -> str:
    """The page."""
    return markdown.page("Connectors", _INTRODUCTION, _lines())


def _lines() -> Iterator[str]:
    for definition in definitions():
        yield from (f"## {definition.klass}", "", f"A {definition.kind}.", "")
        if definition.aliases:
            yield from ("Also called " + ", ".join(markdown.code(alias) for alias in definition.aliases) + ".", "")
        if definition.kcql_key is not None:
            clauses = ", ".join(markdown.code(clause) for clause in sorted(definition.kcql_clauses))
            yield from (f"Statements stand in `{definition.kcql_key}`. It uses these KCQL clauses: {clauses}.", "")
            for clause, reason in definition.clause_reasons:
                yield f"- `{clause}` is refused: {reason}"
            if definition.clause_reasons:
                yield ""
        if definition.open_prefixes:
            prefixes = ", ".join(markdown.code(f"{prefix}*") for prefix in definition.open_prefixes)
            yield from (f"Keys under {prefixes} are passed on without a check.", "")
        yield from markdown.table(
            ("key", "type", "default", "importance", "meaning", "also"), map(_row, definition.keys)
        )
        yield ""


def _row(key: Key) -> tuple[str, ...]:
    default = "required" if key.required else markdown.code(key.default or "") or "empty"
    meaning = key.doc
    if key.allowed:
        meaning += f" One of: {', '.join(key.allowed)}."
    if key.minimum is not None:
        meaning += f" At least {key.minimum:g}."
    if key.maximum is not None:
        meaning += f" At most {key.maximum:g}."
    if key.without_effect:
        meaning += f" **No effect**: {key.without_effect}"
    aliases = ", ".join(markdown.code(alias) for alias in key.aliases)
    return markdown.code(key.name), key.type.value, default, key.importance.value, meaning, aliases
