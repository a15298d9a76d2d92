"""Retired names are found nowhere: not as identifiers, not as names of files, and not as words in texts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from retired_names import RETIRED, Retired
from suite import ROOT, tracked

HISTORY = (
    "docs/audit",
    "docs/results/",
    "CHANGELOG.md",
    "contracts-tests/releases/",
    "docs/reference/topics.md",
    "tests/layout/",
)
"""Texts about the past; a page with the texts of registered schemas, which cannot change; this list itself."""
TEXTS = (".css", ".html", ".j2", ".js", ".md", ".py", ".toml", ".tpl", ".txt", ".yaml", ".yml")


@cache
def _files(*suffixes: str) -> tuple[tuple[str, Path], ...]:
    paths = ((path.relative_to(ROOT).as_posix(), path) for path in tracked(*suffixes))
    return tuple((name, path) for name, path in paths if not name.startswith(HISTORY))


def _in(where: tuple[str, ...], name: str) -> bool:
    return not where or name.startswith(tuple(f"{folder}/" for folder in where))


@cache
def _identifiers(path: Path) -> dict[str, int]:
    """The names in a file's code, without leading underscores, each with its first line."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for name in _names_of(node):
            found.setdefault(name.lstrip("_"), getattr(node, "lineno", 1))
    return found


def _names_of(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            yield name
        case ast.keyword(arg=str(name)):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.rpartition(".")[2]


def _lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """The number and text of each line, and the text of the next one, because words of a text are split over lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, (line, after) in enumerate(pairwise([*lines, ""]), start=1):
        yield number, line, after.lstrip(" #*>|")


@pytest.mark.parametrize("retired", RETIRED, ids=lambda retired: retired.now.partition(",")[0])
def test_a_retired_identifier_is_used_nowhere(retired: Retired) -> None:
    found = [
        f"{name}:{lines[identifier]}: {identifier}"
        for name, path in _files(".py")
        if _in(retired.where, name)
        for lines in (_identifiers(path),)
        for identifier in retired.identifiers
        if identifier in lines
    ]
    assert not found, "\n".join([f"say {retired.now}:", *found])


@pytest.mark.parametrize("retired", RETIRED, ids=lambda retired: retired.now.partition(",")[0])
def test_no_file_has_a_retired_name(retired: Retired) -> None:
    found = [name for name, path in _files(".py") if _in(retired.where, name) and path.stem in retired.modules]
    assert not found, "\n".join([f"say {retired.now}:", *found])


@pytest.mark.parametrize("retired", [one for one in RETIRED if one.prose], ids=lambda one: one.now.partition(",")[0])
def test_a_retired_word_stands_in_no_text(retired: Retired) -> None:
    pattern = re.compile("|".join(retired.prose), re.IGNORECASE)
    found = [
        f"{name}:{number}: {match[0]}"
        for name, path in _files(*TEXTS)
        for number, line, after in _lines(path)
        for match in pattern.finditer(f"{line} {after}")
        if match.start() < len(line)
    ]
    assert not found, "\n".join([f"say {retired.now}:", *found])
