"""Connector files: Java properties, JSON (flat, or `{"name": .., "config": {..}}` as in Connect's REST API), TOML.

Values stay texts, and references to secrets (`${env:X}`, `${file:path:key}`) stay references. A configuration can
therefore be stored, shown and compared; only the task that opens the connection resolves the references.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import javaproperties

from isotherm.servicekit import secrets

NAME = "name"
CLASS = "connector.class"
CLASS_ALIASES = ("class",)

_MAX_CHARS = 256 * 1024
"""Maximum size of a configuration. The parsers take time that is quadratic in the length of a key or a line."""
_MAX_CONTINUATIONS = 500
"""Maximum number of lines of one value in a properties file."""
_BLANKS = " \t\f"
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_SEPARATOR = re.compile(r"[=:]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class ConfigError(Exception):
    """A connector's configuration cannot be used; `problems` holds one line for each reason."""

    def __init__(self, problems: list[str] | tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class ConnectorConfig:
    """A named configuration; `config` holds every key as written, `name` and `connector.class` among them."""

    name: str
    klass: str
    config: dict[str, str] = field(default_factory=dict)
    origin: str = ""
    """The file or topic that the configuration came from, for error texts."""

    def resolved(self, environ: Mapping[str, str]) -> ConnectorConfig:
        """The configuration with every reference replaced by its value; never log or store the result.

        Raises ConfigError, which names each key whose reference cannot be resolved.
        """
        values: dict[str, str] = {}
        problems: list[str] = []
        for key, value in self.config.items():
            try:
                values[key] = secrets.resolve(value, environ)
            except secrets.SecretError as error:
                problems.append(f"{key}: {error.args[0]}")
        if problems:
            raise ConfigError(problems)
        return ConnectorConfig(self.name, self.klass, values, self.origin)


def group_of(name: str) -> str:
    """The consumer group of the tasks of a sink connector called `name`, as Kafka Connect names it."""
    return f"connect-{name}"


def read(path: Path) -> ConnectorConfig:
    """Read a connector file; its form follows its extension (`.json`, `.toml`, `.properties`) or first character.

    Raises ConfigError with every problem of the text and its line, where it has one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror or error}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 at byte {error.start}"]) from None
    form = {".json": "json", ".toml": "toml", ".properties": "properties"}.get(path.suffix.lower())
    return parse(text, form=form, origin=str(path))


def parse(text: str, *, form: str | None = None, origin: str = "<stdin>") -> ConnectorConfig:
    """Read a connector configuration from text.

    `form` is `properties`, `json` or `toml`; None means JSON when the text begins with `{`, else properties.

    Raises ConfigError with every problem found.
    """
    return from_mapping(entries(text, form=form, origin=origin), origin=origin)


def entries(text: str, *, form: str | None = None, origin: str = "<stdin>") -> dict[str, str]:
    """The keys and values of a text in one of these forms; name and class may be missing.

    Raises ConfigError with every problem found.
    """
    if form is None:
        form = "json" if text.lstrip().startswith("{") else "properties"
    if len(text) > _MAX_CHARS:
        raise ConfigError([f"{origin}: {len(text)} characters; allowed: {_MAX_CHARS}"])
    problems: list[str] = []
    read_entries = {"json": _json_entries, "toml": _toml_entries, "properties": _properties_entries}[form]
    values: dict[str, str] = {}
    try:
        for where, key, value in read_entries(text, problems):
            if key in values:
                problems.append(f"{where}{key}: given twice")
            if not key:
                problems.append(f"{where}a key is empty")
            problems += [f"{where}{key!r}: {why}" for why in _text_problems(key + value)]
            values[key] = value
    except RecursionError:
        problems.append("nested too deeply")
    except ValueError as error:
        # A number with more than 4,300 digits, or a constant that JSON does not have.
        problems.append(str(error))
    if problems:
        raise ConfigError([f"{origin}: {problem}" for problem in problems])
    return values


def _text_problems(text: str) -> list[str]:
    """Why a key or value cannot be stored and passed on, if so."""
    found = ["it has a NUL character"] if "\0" in text else []
    return found if _SURROGATE.search(text) is None else [*found, "it has half of a surrogate pair, which is no text"]


def from_mapping(config: Mapping[str, str], *, origin: str = "<config>") -> ConnectorConfig:
    """A configuration from a map: a record of the control topic or a REST body.

    Raises ConfigError when name or class is missing, or the name is not allowed.
    """
    return _named(dict(config), origin)


def to_properties(config: Mapping[str, str]) -> str:
    """The configuration as a properties file that `parse` reads back unchanged."""
    return "".join(f"{_escaped(key, key=True)}={_escaped(value, key=False)}\n" for key, value in config.items())


def _named(values: dict[str, str], origin: str) -> ConnectorConfig:
    klass_key = next((key for key in (CLASS, *CLASS_ALIASES) if key in values), CLASS)
    problems = [f"{key}: missing" for key in (NAME, klass_key) if not values.get(key)]
    name = values.get(NAME, "")
    if name and not _NAME_PATTERN.fullmatch(name):
        problems.append(
            f"name: {name!r} is not allowed: letters, digits, '.', '_' and '-', at most 200, beginning with a letter "
            "or digit (it becomes part of a consumer group and of topic names)"
        )
    if problems:
        raise ConfigError([f"{origin}: {problem}" for problem in problems])
    return ConnectorConfig(name, values[klass_key], values, origin)


_Entries = Iterator[tuple[str, str, str]]


def _json_entries(text: str, problems: list[str]) -> _Entries:
    try:
        document = json.loads(text, object_pairs_hook=_refuse_repeats, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        problems.append(f"line {error.lineno}, column {error.colno}: {error.msg}")
        return
    except KeyError as error:
        problems.append(f"{error.args[0]}: given twice")
        return
    if not isinstance(document, dict):
        problems.append("expected a JSON object")
        return
    inner = document.get("config")
    if isinstance(inner, dict):
        problems.extend(f"{key}: not allowed beside name and config" for key in document.keys() - {"name", "config"})
        if inner.get(NAME, document.get(NAME)) != document.get(NAME, inner.get(NAME)):
            problems.append(f"name: {document[NAME]!r} outside of config and {inner[NAME]!r} inside")
        document = {**({NAME: document[NAME]} if NAME in document else {}), **inner}
    yield from _scalars(document, problems)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise KeyError(key)
        found[key] = value
    return found


def _toml_entries(text: str, problems: list[str]) -> _Entries:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(str(error))
        return
    yield from _scalars(_flat(document), problems)


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat.update(_flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value})
    return flat


def _scalars(document: Mapping[str, Any], problems: list[str]) -> _Entries:
    for key, value in document.items():
        if isinstance(value, list) and all(isinstance(item, (str, int, float)) for item in value):
            yield "", key, ",".join(str(item) for item in value)
        elif isinstance(value, bool):
            yield "", key, "true" if value else "false"
        elif isinstance(value, (str, int, float)):
            yield "", key, str(value)
        else:
            problems.append(f"{key}: expected a text, number or boolean, found {json.dumps(value, default=str)[:80]}")


def _properties_entries(text: str, problems: list[str]) -> _Entries:
    number = 1
    lines = [_without_trailing_blanks(line) for line in _LINE_BREAK.split(text)]
    if any(len(list(run)) > _MAX_CONTINUATIONS for is_continued, run in groupby(lines, _is_continued) if is_continued):
        problems.append(f"a value has more than {_MAX_CONTINUATIONS} lines")
        return
    try:
        for element in javaproperties.parse("\n".join(lines)):
            line = f"line {number}"
            number += len(_LINE_BREAK.findall(element.source))
            if not isinstance(element, javaproperties.KeyValue):
                continue
            if not element.key:
                problems.append(f"{line}: no key before {element.source.strip()[:1]!r}")
            elif not element.value and not _SEPARATOR.search(element.source):
                problems.append(f"{line}: expected key=value, found {element.source_stripped.strip()[:80]!r}")
            else:
                yield f"{line}: ", element.key, element.value
    except javaproperties.InvalidUEscapeError:
        problems.append(f"line {number}: \\u needs four hexadecimal digits")


def _without_trailing_blanks(line: str) -> str:
    """Remove blanks at the end, which Java keeps: they are invisible, and no value needs them; not an escaped one."""
    stripped = line.rstrip(_BLANKS)
    return line[: len(stripped) + 1] if stripped.endswith("\\") else stripped


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _escaped(text: str, *, key: bool) -> str:
    # Control characters and line breaks everywhere; blanks and separators only where a reader would take them as such.
    special = r"[\x00-\x1f\x7f\x85\u2028\u2029]|" + ("[=:#! ]" if key else "^ +| +$")
    return re.sub(
        special,
        lambda match: "".join(f"\\u{ord(character):04x}" for character in match.group()),
        text.replace("\\", "\\\\"),
    )
