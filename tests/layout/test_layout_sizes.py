"""Folders, files and functions stay short, and every folder says what it is for."""

from __future__ import annotations

import ast
from collections import Counter

import pytest
from suite import PACKAGES, sources

MOST_MODULES, MOST_LINES, MOST_LINES_OF_A_FUNCTION = 14, 400, 60
FEWEST_WORDS = 8


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_folder_has_few_modules(package: str) -> None:
    modules = Counter(source.parent for source in sources(package))
    assert {str(folder): count for folder, count in modules.items() if count > MOST_MODULES} == {}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_files_and_functions_are_short(package: str) -> None:
    long = []
    for source in sources(package):
        text = source.read_text(encoding="utf-8")
        if (lines := len(text.splitlines())) > MOST_LINES:
            long.append(f"{source}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > MOST_LINES_OF_A_FUNCTION:
                    long.append(f"{source}:{node.lineno}: {node.name} has {lines} lines")
    assert long == []


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_folder_says_what_it_does(package: str) -> None:
    for source in sources(package):
        if source.name == "__init__.py":
            words = (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").split()
            assert len(words) >= FEWEST_WORDS, f"{source}: {' '.join(words)!r} does not say what the folder is for"
            assert "TODO." not in words, source
