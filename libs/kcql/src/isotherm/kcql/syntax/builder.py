"""Builds the model from lark's tree of one statement, and checks the rules that the grammar cannot express."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from lark import Token, Tree

from isotherm.kcql.dates import EXPECTED as EXPECTED_DATE
from isotherm.kcql.dates import BadPattern, compile_pattern
from isotherm.kcql.model import (
    SYS_TIME,
    Field,
    Part,
    Path,
    Statement,
    StoreAs,
    Tag,
)
from isotherm.kcql.syntax.condition_builder import build_condition
from isotherm.kcql.syntax.names import (
    BARE_FIELD,
    Lexeme,
    joined,
    nearest,
    read_field,
    read_target,
    split,
    unquote,
)
from isotherm.kcql.syntax.nodes import Child, Node, lexeme_of

FORMATS = ("AVRO", "JSON", "TEXT", "BINARY", "OBJECT", "MAP", "PROTOBUF", "RAW")
TIMESTAMP_UNITS = ("NANOSECONDS", "MICROSECONDS", "MILLISECONDS", "SECONDS", "MINUTES", "HOURS", "DAYS")
LARGEST_NUMBER = 2**63 - 1
_OTHER_SPELLINGS = {"RINGBUFFER": "RING_BUFFER"}
_NUMBER = re.compile(r"[0-9]{1,40}")

_WORDS = {
    "WITHFORMAT": "format",
    "TIMESTAMPUNIT": "timestamp_unit",
    "INCREMENTALMODE": "incremental_mode",
    "WITHTYPE": "type",
}
_ALLOWED_WORDS = {"WITHFORMAT": FORMATS, "TIMESTAMPUNIT": TIMESTAMP_UNITS}
_TEXTS = {
    "WITHDOCTYPE": "doc_type",
    "WITHCONVERTER": "converter",
    "WITHJMSSELECTOR": "jms_selector",
    "KEYDELIMITER": "key_delimiter",
    "WITHPIPELINE": "pipeline",
    "WITHSUBSCRIPTION": "subscription",
    "WITHREGEX": "regex",
}
_FLAGS = {
    "AUTOCREATE": "autocreate",
    "WITHSTRUCTURE": "with_structure",
    "AUTOEVOLVE": "autoevolve",
    "NOPARTITION": "no_partition",
    "WITHUNWRAP": "unwrap",
}


def build_statement(text: str, tree: Node) -> Statement:
    """The model of one statement.

    Args:
        text: the whole text, to which the positions of the tree's tokens refer.
        tree: a `statement` node of the grammar.

    Raises:
        KcqlError: a clause or a name is given twice, or a clause does not allow its value.
    """
    return _Builder(text, tree).statement()


class _Builder:
    def __init__(self, text: str, tree: Node) -> None:
        self._source = text
        self._tree = tree
        self._clauses: dict[str, Lexeme] = {}

    def _lexeme(self, child: Child) -> Lexeme:
        return lexeme_of(self._source, child)

    def statement(self) -> Statement:
        mode: Literal["INSERT", "UPSERT"] | None = None
        target: str | None = None
        target_from: Path | None = None
        source = ""
        fields: list[tuple[Field, Lexeme]] = []
        clauses: dict[str, Any] = {}
        for child in self._tree.children:
            if isinstance(child, Token):
                if child.type == "SOURCE":
                    source = joined(self._lexeme(child))
                continue
            if child.data in ("insert", "upsert"):
                mode = "INSERT" if child.data == "insert" else "UPSERT"
                target, target_from = read_target(self._lexeme(child.children[-1]))
            elif child.data == "field":
                fields.append(self._field(child))
            else:
                read: Callable[[str, list[Child]], dict[str, Any]] = getattr(self, f"_{child.data}")
                clauses |= read(self._begin_clause(child), list(child.children[1:]))
        self._refuse_contradictions()
        meta = self._tree.meta
        return Statement(
            mode=mode,
            target=target,
            target_from=target_from,
            source=source,
            fields=self._distinct_fields(fields),
            clauses=frozenset(self._clauses),
            text=self._source[meta.start_pos : meta.end_pos],
            **clauses,
        )

    def _begin_clause(self, clause: Node) -> str:
        word = clause.children[0]
        assert isinstance(word, Token)
        name = "WITHFORMAT" if word.type == "WITH" else word.type
        lexeme = self._lexeme(word)
        if name in self._clauses:
            raise lexeme.refuse(f"{name} is given twice", expected="each clause at most once")
        self._clauses[name] = lexeme
        return name

    def _refuse_contradictions(self) -> None:
        if "PARTITIONBY" in self._clauses and "NOPARTITION" in self._clauses:
            later = max(self._clauses["PARTITIONBY"], self._clauses["NOPARTITION"], key=lambda word: word.start)
            raise later.refuse("PARTITIONBY and NOPARTITION exclude each other", expected="one of them")

    def _field(self, tree: Node) -> tuple[Field, Lexeme]:
        children: list[Child] = list(tree.children)
        name, call, _, alias = children
        lexeme = self._lexeme(name)
        if call is not None:
            return Field(self._function(lexeme), self._alias(alias)), lexeme
        path, wildcard = read_field(lexeme)
        if wildcard and alias is not None:
            raise self._lexeme(alias).refuse("a wildcard takes no alias")
        return Field(path, self._alias(alias), wildcard), lexeme

    def _alias(self, alias: Child) -> str | None:
        return None if alias is None else joined(self._lexeme(alias))

    def _function(self, lexeme: Lexeme) -> Path:
        segments = split(lexeme)
        if len(segments) > 1 or not BARE_FIELD.fullmatch(segments[0].text):
            raise lexeme.refuse(f'"{lexeme.text}" is not the name of a function', expected="a name without dots")
        return Path(Part.FUNCTION, (segments[0].text,))

    def _distinct_fields(self, fields: Iterable[tuple[Field, Lexeme]]) -> tuple[Field, ...]:
        aliases: set[str] = set()
        seen: set[tuple[Path, str | None]] = set()
        for field, lexeme in fields:
            if field.alias is not None and field.alias in aliases:
                raise lexeme.refuse(f'the alias "{field.alias}" is given twice')
            if field.alias is not None:
                aliases.add(field.alias)
            name = (field.path, field.alias or field.natural_name)
            if name in seen:
                raise lexeme.refuse(f'"{lexeme.text}" is selected twice under one name')
            seen.add(name)
        return tuple(field for field, _ in fields)

    def _where(self, word: str, values: list[Child]) -> dict[str, Any]:
        return {"where": build_condition(self._source, values[0])}

    def _flag(self, word: str, values: list[Child]) -> dict[str, Any]:
        return {_FLAGS[word]: True}

    def _paths(self, word: str, values: list[Child]) -> dict[str, Any]:
        lexemes = [self._lexeme(value) for value in values]
        if word == "IGNORE":
            ignored = self._distinct((self._value_path(word, lexeme), lexeme) for lexeme in lexemes)
            return {"ignore": tuple(path.segments for path in ignored)}
        paths = self._distinct((self._place(word, lexeme), lexeme) for lexeme in lexemes)
        return {"primary_key" if word == "PK" else "partition_by": paths}

    def _keys(self, word: str, values: list[Child]) -> dict[str, Any]:
        lexemes = [self._lexeme(value) for value in values]
        return {"with_key": self._distinct((self._place(word, lexeme), lexeme) for lexeme in lexemes)}

    def _path(self, word: str, values: list[Child]) -> dict[str, Any]:
        return {"dynamic_target": self._value_path(word, self._lexeme(values[0])).segments}

    def _place(self, word: str, lexeme: Lexeme) -> Path:
        path, wildcard = read_field(lexeme)
        if wildcard:
            raise lexeme.refuse(f"{word} takes single fields, no wildcard")
        if path.part is Part.FUNCTION:
            raise lexeme.refuse(f"{word} takes fields, no function")
        return path

    def _value_path(self, word: str, lexeme: Lexeme) -> Path:
        path = self._place(word, lexeme)
        if path.part is not Part.VALUE:
            raise lexeme.refuse(f"{word} takes fields of the value only")
        if not path.segments:
            raise lexeme.refuse(f"{word} takes a field, not the whole value")
        return path

    def _distinct(self, paths: Iterable[tuple[Path, Lexeme]]) -> tuple[Path, ...]:
        seen: dict[Path, None] = {}
        for path, lexeme in paths:
            if path in seen:
                raise lexeme.refuse(f'"{lexeme.text}" is given twice')
            seen[path] = None
        return tuple(seen)

    def _timestamp(self, word: str, values: list[Child]) -> dict[str, Any]:
        name, call = values
        lexeme = self._lexeme(name)
        path = self._function(lexeme) if call is not None else read_field(lexeme)[0]
        if path.part is not Part.FUNCTION:
            return {"timestamp": self._place(word, lexeme)}
        if path.segments[0].lower() != SYS_TIME.segments[0]:
            raise lexeme.refuse(f"{word} takes a field or sys_time()", expected="a field or sys_time()")
        return {"timestamp": SYS_TIME}

    def _number(self, word: str, values: list[Child]) -> dict[str, Any]:
        lexeme = self._lexeme(values[0])
        text = unquote(lexeme)
        if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= LARGEST_NUMBER:
            raise lexeme.refuse(f'{word} is "{text}"', expected=f"a whole number from 1 to 2^63-1 ({LARGEST_NUMBER})")
        return {word.lower(): int(text)}

    def _word(self, word: str, values: list[Child]) -> dict[str, Any]:
        lexeme = self._lexeme(values[-1])
        value = unquote(lexeme).upper()
        allowed = _ALLOWED_WORDS.get(word)
        if allowed is not None and value not in allowed:
            raise lexeme.refuse(
                f'{word} is "{unquote(lexeme)}"',
                expected=f"one of {', '.join(allowed)}",
                suggestion=nearest(value, allowed),
            )
        return {_WORDS[word]: value}

    def _text(self, word: str, values: list[Child]) -> dict[str, Any]:
        lexeme = self._lexeme(values[0])
        value = unquote(lexeme)
        if word == "KEYDELIMITER" and value.isspace():
            raise lexeme.refuse("KEYDELIMITER is blank", expected="one or more characters, not only blanks")
        return {_TEXTS[word]: value}

    def _store_as(self, word: str, values: list[Child]) -> dict[str, Any]:
        kind = unquote(self._lexeme(values[0])).upper()
        parameters = self._pairs(values[1:], may_be_empty=False)
        return {"store_as": StoreAs(_OTHER_SPELLINGS.get(kind, kind), parameters)}

    def _properties(self, word: str, values: list[Child]) -> dict[str, Any]:
        return {"properties": self._pairs(values, may_be_empty=True)}

    def _pairs(self, pairs: list[Child], *, may_be_empty: bool) -> dict[str, str]:
        result: dict[str, str] = {}
        seen: set[str] = set()
        for name, value in self._pair_tokens(pairs):
            lexeme = self._lexeme(name)
            key = unquote(lexeme)
            if key.casefold() in seen:
                raise lexeme.refuse(f'"{key}" is given twice')
            seen.add(key.casefold())
            empty = value is None
            result[key] = "" if empty else unquote(self._lexeme(value), may_be_empty=may_be_empty)
        return result

    def _pair_tokens(self, pairs: list[Child]) -> Iterator[tuple[Child, Child]]:
        for pair in pairs:
            assert isinstance(pair, Tree)
            name, value = pair.children
            yield name, value

    def _suffix(self, word: str, values: list[Child]) -> dict[str, Any]:
        lexeme = self._lexeme(values[0])
        suffix = unquote(lexeme)
        try:
            compile_pattern(suffix)
        except BadPattern as error:
            start = lexeme.start + (lexeme.text != suffix)
            wrong = Lexeme(self._source, start + error.start, start + error.end)
            raise wrong.refuse(str(error), expected=EXPECTED_DATE) from None
        return {"index_suffix": suffix}

    def _tags(self, word: str, values: list[Child]) -> dict[str, Any]:
        tags: dict[tuple[tuple[str, ...] | str, str | None], Tag] = {}
        for tree in values:
            assert isinstance(tree, Tree)
            lexeme = self._lexeme(tree.children[0])
            path = self._value_path(word, lexeme).segments
            constant = unquote(self._lexeme(tree.children[1])) if tree.data == "constant" else None
            alias = self._alias(tree.children[2]) if tree.data == "tag" else None
            name = (path, alias)
            if name in tags:
                raise lexeme.refuse(f'"{lexeme.text}" is given twice')
            tags[name] = Tag(path, alias, constant)
        return {"tags": tuple(tags.values())}
