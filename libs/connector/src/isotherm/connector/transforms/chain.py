"""`transforms` and `predicates` of a connector's configuration, checked and compiled to one function."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from isotherm.connector.transforms.catalog import (
    PACKAGE,
    PREDICATES,
    TRANSFORMS,
    Option,
    OptionType,
    Predicate,
    PredicateClass,
    TransformClass,
    read_option,
)
from isotherm.connector.transforms.message import Message, Part, Transform

PREFIXES = ("transforms", "predicates")
_REFERENCE = re.compile(r"\$\{(env|file):")
_PREDICATES_PACKAGE = f"{PACKAGE}predicates."
_ROUTERS = ("RegexRouter", "TimestampRouter")
_Class = TypeVar("_Class", TransformClass, PredicateClass)
Problems = list[tuple[str, str]]
"""Keys, each with what is wrong with it."""


class Chain(NamedTuple):
    """The transforms of a connector."""

    apply: Transform
    uses_key: bool
    """Whether a transform reads or replaces the key."""
    routes: bool
    """Whether a transform changes topics, so that statements read topics that are not listed."""


def is_transform_key(key: str) -> bool:
    """Whether a key belongs to transforms or predicates."""
    return key.partition(".")[0] in PREFIXES


def read_chain(given: Mapping[str, str]) -> tuple[Chain | None, Problems]:
    """The chain of a configuration, None without transforms; and every problem of its keys.

    Values that hold references to secrets are not checked, and then there is no chain.
    """
    if any(_REFERENCE.search(value) for key, value in given.items() if is_transform_key(key)):
        return None, []
    reader = _Reader(given)
    chain = reader.chain()
    return (None if reader.problems else chain), reader.problems


class _Reader:
    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {key: value for key, value in given.items() if is_transform_key(key)}
        self.problems: Problems = []

    def chain(self) -> Chain | None:
        predicates = {name: self._predicate(name) for name in self._names("predicates")}
        steps: list[Transform] = []
        uses_key = routes = False
        for name in self._names("transforms"):
            prefix = f"transforms.{name}"
            found = self._class(f"{prefix}.type", PACKAGE, TRANSFORMS)
            if found is None:
                continue
            class_name, part, transform_class = found
            options = self._options(prefix, transform_class.options, ("type", "predicate", "negate"))
            made = None if options is None else self._made(prefix, partial(transform_class.make, options, part))
            condition = self._condition(prefix, predicates)
            if made is not None:
                steps.append(made if condition is None else _conditional(made, condition))
            uses_key = uses_key or part is Part.KEY or class_name == "ValueToKey"
            routes = routes or class_name in _ROUTERS
        return Chain(_chained(steps), uses_key, routes) if steps else None

    def _names(self, kind: str) -> list[str]:
        written = self._given.get(kind, "")
        names = [name.strip() for name in written.split(",") if name.strip()]
        for name in names:
            if names.count(name) > 1:
                self.problems.append((kind, f"{name!r} is listed twice"))
                return list(dict.fromkeys(names))
        for key in self._given:
            belongs = key.startswith(f"{kind}.")
            if belongs and not any(key.startswith(f"{kind}.{name}.") for name in names):
                self.problems.append((key, f"{kind} does not list it ({written or 'empty'})"))
        return names

    def _class(self, key: str, package: str, classes: Mapping[str, _Class]) -> tuple[str, Part, _Class] | None:
        written = self._given.get(key)
        listed = ", ".join(classes)
        if not written:
            self.problems.append((key, f"missing; expected one of {listed}, as {package}NAME"))
            return None
        short, _, suffix = written.removeprefix(package).partition("$")
        found = classes.get(short)
        if found is None:
            near = difflib.get_close_matches(short, classes, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.problems.append((key, f"{written!r} is not supported; expected one of {listed}{hint}"))
            return None
        has_parts = getattr(found, "has_parts", False)
        suffixes = [part.value for part in Part] if has_parts else [""]
        if suffix not in suffixes:
            expected = " or ".join(f"{package}{short}${part.value}" for part in Part) if has_parts else package + short
            self.problems.append((key, f"{written!r} is not allowed; expected {expected}"))
            return None
        return short, Part(suffix) if suffix else Part.VALUE, found

    def _options(self, prefix: str, options: Mapping[str, Option], others: Iterable[str]) -> dict[str, Any] | None:
        own = {
            key.removeprefix(f"{prefix}."): value for key, value in self._given.items() if key.startswith(f"{prefix}.")
        }
        known = (*options, *others)
        before = len(self.problems)
        for name in own:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                listed = ", ".join(options) or "none"
                self.problems.append((f"{prefix}.{name}", f"unknown; its options are {listed}{hint}"))
        values: dict[str, Any] = {}
        for name, option in options.items():
            text = own.get(name, option.default)
            if text is None:
                values[name] = None
                if option.required:
                    self.problems.append((f"{prefix}.{name}", "missing"))
                continue
            try:
                values[name] = read_option(option, text)
            except ValueError as error:
                self.problems.append((f"{prefix}.{name}", str(error)))
        return values if len(self.problems) == before else None

    def _made(self, prefix: str, make: Callable[[], Transform]) -> Transform | None:
        try:
            return make()
        except ValueError as error:
            self.problems.append((prefix, str(error)))
            return None

    def _predicate(self, name: str) -> Predicate | None:
        prefix = f"predicates.{name}"
        found = self._class(f"{prefix}.type", _PREDICATES_PACKAGE, PREDICATES)
        options = None if found is None else self._options(prefix, found[2].options, ("type",))
        return None if found is None or options is None else found[2].make(options)

    def _condition(self, prefix: str, predicates: Mapping[str, Predicate | None]) -> Predicate | None:
        name = self._given.get(f"{prefix}.predicate")
        negate = self._given.get(f"{prefix}.negate")
        is_negated = False
        if negate is not None:
            try:
                is_negated = read_option(Option(OptionType.BOOLEAN), negate)
            except ValueError as error:
                self.problems.append((f"{prefix}.negate", str(error)))
            if name is None:
                self.problems.append((f"{prefix}.negate", f"has no effect without {prefix}.predicate"))
        if name is None:
            return None
        if name not in predicates:
            listed = ", ".join(predicates) or "none"
            self.problems.append((f"{prefix}.predicate", f"{name!r} is not a predicate; predicates lists {listed}"))
            return None
        predicate = predicates[name]
        if predicate is None or not is_negated:
            return predicate
        return lambda message: not predicate(message)


def _conditional(transform: Transform, predicate: Predicate) -> Transform:
    return lambda message: transform(message) if predicate(message) else message


def _chained(steps: list[Transform]) -> Transform:
    def apply(message: Message) -> Message | None:
        found: Message | None = message
        for transform in steps:
            found = transform(found) if found is not None else None
        return found

    return apply
