"""Every small change of a request or response, as a change of the code that makes it would look."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from isotherm.contracts.mutations.operators import DROP, EACH, RENAME, RESCALE, RETYPE, Path
from isotherm.contracts.rest.exchanges import Document

_OTHER_SUCCESS: Mapping[int, int] = {200: 202, 201: 200, 202: 200, 204: 202}
_OTHER_METHOD = {"GET": "POST"}


class DocumentMutant(NamedTuple):
    """A mutated request or response: what was changed, by which operator."""

    path: Path
    operator: str
    document: Document

    @property
    def where(self) -> str:
        """The path as a text."""
        return ".".join(self.path)


def mutants(document: Document) -> Iterator[DocumentMutant]:
    """Every mutant of a request or response."""
    for name, value in document.items():
        if name == "status":
            other = _OTHER_SUCCESS.get(value, value + 22)
            yield DocumentMutant((name,), RESCALE, {**document, name: other})
            yield DocumentMutant((name,), RETYPE, {**document, name: 500 if value < 400 else 200})
        elif name == "method":
            yield DocumentMutant((name,), RESCALE, {**document, name: _OTHER_METHOD.get(value, "GET")})
        elif name == "path":
            yield DocumentMutant((name,), RESCALE, {**document, name: f"{value}~"})
        elif value:
            if name == "body":
                yield DocumentMutant((name,), DROP, {**document, name: None})
            for path in _paths(value, (name,)):
                yield from _mutants(document, path)


def _paths(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from _paths(inner, (*path, key))
    elif isinstance(value, list):
        found = dict.fromkeys(inner for item in value for inner in _paths(item, (*path, EACH)))
        yield from found


def _mutants(document: Document, path: Path) -> Iterator[DocumentMutant]:
    for operator, change in _OPERATORS.items():
        if operator == RETYPE and path[0] != "body":
            continue  # Headers and queries are texts.
        changed = copy.deepcopy(document)
        for holder in _holders(changed, path[:-1]):
            if path[-1] in holder:
                change(holder, path[-1])
        if changed != document:
            yield DocumentMutant(path, operator, changed)


def _holders(value: Any, path: Path) -> list[Any]:
    found = [value]
    for step in path:
        if step == EACH:
            found = [item for one in found for item in one]
        else:
            found = [one[step] for one in found if one.get(step)]
    return [one for one in found if isinstance(one, dict)]


def _rename(holder: dict[str, Any], name: str) -> None:
    holder[f"{name}_renamed"] = holder.pop(name)


def _drop(holder: dict[str, Any], name: str) -> None:
    del holder[name]


def _retype(holder: dict[str, Any], name: str) -> None:
    value = holder[name]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        holder[name] = str(value)
    elif isinstance(value, str) or value is None:
        holder[name] = 7


def _rescale(holder: dict[str, Any], name: str) -> None:
    holder[name] = _other(holder[name])


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value * 1_000 if value else 7
    if isinstance(value, str):
        return f"{value}~"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return [f"{one}~" for one in value]
    return "~" if value is None else value


_OPERATORS: Mapping[str, Callable[[dict[str, Any], str], None]] = {
    RENAME: _rename,
    DROP: _drop,
    RETYPE: _retype,
    RESCALE: _rescale,
}
