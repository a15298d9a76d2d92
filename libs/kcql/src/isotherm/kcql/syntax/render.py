"""Renders statements as KCQL text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from isotherm.kcql.model import (
    SYS_TIME,
    Part,
    Path,
    Statement,
    Tag,
)
from isotherm.kcql.syntax.condition_text import write_condition
from isotherm.kcql.syntax.expectations import CLAUSES, FLAGS
from isotherm.kcql.syntax.names import (
    BARE_FIELD,
    BARE_TEXT,
    BARE_TOPIC,
    TOPIC_NAME,
    Lexeme,
    is_plain,
    quotings,
    read_target,
    write_field,
    write_path,
)


def render(statements: Statement | Iterable[Statement]) -> str:
    """KCQL text with the same meaning: `parse(render(parse(text))) == parse(text)`.

    Clauses come in the language's own order, names are quoted only where they must be.
    """
    if isinstance(statements, Statement):
        return _render(statements)
    return ";\n".join(_render(statement) for statement in statements)


def _render(statement: Statement) -> str:
    words = []
    if statement.mode is not None:
        words += [statement.mode, "INTO", _target(statement)]
    fields = ", ".join(write_field(field) for field in statement.fields)
    words += ["SELECT", fields, "FROM", next(quotings(statement.source, BARE_TOPIC))]
    words += [_clause(statement, name) for name in CLAUSES if name in statement.clauses]
    return " ".join(words)


def _target(statement: Statement) -> str:
    text = statement.target or ""
    wanted = (text, statement.target_from)
    # Quotes decide whether a name is taken from the record, so each way to write it is read back.
    for written in (*([text] if statement.target_from else []), *quotings(text, BARE_TOPIC)):
        if TOPIC_NAME.fullmatch(written) and read_target(Lexeme(written, 0, len(written))) == wanted:
            return written
    raise ValueError(f"no KCQL name says {text!r}")


def _clause(statement: Statement, name: str) -> str:
    return name if name in FLAGS else f"{name}{_ARGUMENTS[name](statement)}"


def _value(text: str | None, *, bare_too: bool = True) -> str:
    value = text or ""
    if bare_too and is_plain(value, BARE_TEXT) and value.upper() not in FLAGS:
        return value
    return f"'{value}'" if "`" in value else f"`{value}`"


def _paths(paths: Iterable[Path]) -> str:
    return ", ".join(_element(path) for path in paths)


def _element(path: Path) -> str:
    if path == SYS_TIME:
        return "sys_time()"
    text = write_path(path)
    return f"`{text}`" if text.upper() in FLAGS else text


def _pairs(pairs: Mapping[str, str]) -> str:
    return ", ".join(f"{_value(key)}={_value(value)}" for key, value in pairs.items())


def _tag(tag: Tag) -> str:
    path = write_path(Path(Part.VALUE, tag.path))
    if tag.constant is not None:
        return f"{path}={_value(tag.constant)}"
    return path if tag.alias is None else f"{path} AS {next(quotings(tag.alias, BARE_FIELD))}"


def _store_as(statement: Statement) -> str:
    assert statement.store_as is not None
    kind = _value(statement.store_as.type, bare_too=statement.store_as.type not in CLAUSES)
    parameters = _pairs(statement.store_as.parameters)
    return f" {kind}({parameters})" if parameters else f" {kind}"


def _value_paths(paths: Iterable[tuple[str, ...]]) -> str:
    return _paths(Path(Part.VALUE, path) for path in paths)


def _where(statement: Statement) -> str:
    assert statement.where is not None
    return f" {write_condition(statement.where)}"


_ARGUMENTS: dict[str, Callable[[Statement], str]] = {
    "WHERE": _where,
    "IGNORE": lambda s: f" {_value_paths(s.ignore)}",
    "PK": lambda s: f" {_paths(s.primary_key)}",
    "WITHTARGET": lambda s: f"={_value_paths([s.dynamic_target or ()])}",
    "BATCH": lambda s: f"={s.batch}",
    "PARTITIONBY": lambda s: f" {_paths(s.partition_by)}",
    "WITHTIMESTAMP": lambda s: f" {_element(s.timestamp or SYS_TIME)}",
    "TIMESTAMPUNIT": lambda s: f"={s.timestamp_unit}",
    "WITHFORMAT": lambda s: f" {s.format}",
    "STOREAS": _store_as,
    "WITHTAG": lambda s: f" ({', '.join(_tag(tag) for tag in s.tags)})",
    "INCREMENTALMODE": lambda s: f"={_value(s.incremental_mode)}",
    "WITHTYPE": lambda s: f" {_value(s.type)}",
    "WITHDOCTYPE": lambda s: f"={_value(s.doc_type)}",
    "WITHINDEXSUFFIX": lambda s: f"={_value(s.index_suffix, bare_too=False)}",
    "TTL": lambda s: f"={s.ttl}",
    "WITHCONVERTER": lambda s: f"={_value(s.converter)}",
    "WITHJMSSELECTOR": lambda s: f"={_value(s.jms_selector)}",
    "WITHKEY": lambda s: f"({_paths(s.with_key)})",
    "KEYDELIMITER": lambda s: f"={_value(s.key_delimiter, bare_too=False)}",
    "WITHPIPELINE": lambda s: f"={_value(s.pipeline)}",
    "WITHSUBSCRIPTION": lambda s: f"={_value(s.subscription)}",
    "WITHREGEX": lambda s: f"={_value(s.regex)}",
    "LIMIT": lambda s: f" {s.limit}",
    "PROPERTIES": lambda s: f"({_pairs(s.properties)})",
}
