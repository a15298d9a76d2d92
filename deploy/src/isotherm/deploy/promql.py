"""Finds the metrics and labels that a PromQL query names, to check them against the metrics that exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from isotherm.deploy.definitions import Definition

FUNCTIONS = frozenset(
    ("absent", "histogram_quantile", "increase", "last_over_time", "max", "min", "rate", "sum", "time")
)
"""Functions that the suite's queries use."""
_GROUPINGS = frozenset(("by", "without", "on", "ignoring", "group_left", "group_right"))
_WORDS = _GROUPINGS | {"and", "or", "unless", "offset", "bool"}
TARGET_LABELS = frozenset(("job", "instance", "namespace", "pod", "service", "container"))
"""Labels that Prometheus adds to every sample."""

_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*")|(?P<range>\[[^\]]*\])|(?P<name>[a-zA-Z_:][\w:]*)|(?P<number>[\d.]+(?:e[+-]?\d+)?\w*)"""
    r"""|(?P<operator>=~|!~|!=|==|>=|<=|[-+*/%^(){}=,<>])|(?P<space>\s+)"""
)


@dataclass(frozen=True)
class Named:
    """The names in a query."""

    metrics: frozenset[str]
    labels: frozenset[str]
    functions: frozenset[str]


def named(query: str) -> Named:
    """The metrics, labels and functions in `query`. Raises ValueError for text that is not PromQL or is not closed."""
    metrics: set[str] = set()
    labels: set[str] = set()
    functions: set[str] = set()
    # The kind of each open bracket: of a selector, of a grouping's labels, or another.
    open_brackets: list[str] = []
    tokens = [(kind, text) for kind, text in _tokens(query) if kind != "space"]
    for index, (kind, text) in enumerate(tokens):
        following = tokens[index + 1][1] if index + 1 < len(tokens) else ""
        if text in ("(", "{"):
            grouping = index > 0 and tokens[index - 1][1] in _GROUPINGS
            open_brackets.append("{" if text == "{" else "labels" if grouping else "(")
        elif text in (")", "}"):
            if not open_brackets or (open_brackets.pop() == "{") != (text == "}"):
                raise ValueError(f"{text} closes nothing: {query}")
        elif kind == "name" and open_brackets and open_brackets[-1] in ("{", "labels"):
            labels.add(text)
        elif kind == "name" and text not in _WORDS:
            (functions if following == "(" or text in FUNCTIONS else metrics).add(text)
    if open_brackets:
        raise ValueError(f"a bracket is not closed: {query}")
    return Named(frozenset(metrics), frozenset(labels), frozenset(functions))


def problems(query: str, known: Iterable[Definition], variables: Mapping[str, str] | None = None) -> list[str]:
    """The names in `query` that do not exist; a dashboard's `variables` are replaced first.

    A label exists when one of the query's metrics has it.
    """
    for name, value in (variables or {}).items():
        query = query.replace(f"${name}", value)
    try:
        found = named(query)
    except ValueError as error:
        return [str(error)]
    by_sample = {sample: definition for definition in known for sample in definition.samples}
    wrong = [f"no metric {name}: {query}" for name in sorted(found.metrics - by_sample.keys())]
    wrong += [f"no function {name}: {query}" for name in sorted(found.functions - FUNCTIONS)]
    labels = {label for name in found.metrics & by_sample.keys() for label in by_sample[name].labels}
    if any(name.endswith("_bucket") for name in found.metrics):
        labels.add("le")
    wrong += [f"no label {name}: {query}" for name in sorted(found.labels - labels - TARGET_LABELS)]
    if not found.metrics:
        wrong.append(f"no metric at all: {query}")
    return wrong


def _tokens(query: str) -> Iterable[tuple[str, str]]:
    position = 0
    while position < len(query):
        match = _TOKEN.match(query, position)
        if match is None:
            raise ValueError(f"not understood from {query[position : position + 20]!r}: {query}")
        position = match.end()
        yield str(match.lastgroup), match.group()
