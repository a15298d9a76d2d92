"""Folders of a working tree."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "examples"
PACTS = ROOT / "contracts-tests" / "pacts"
RECORDINGS = ROOT / "contracts-tests" / "recordings"
DOCS = ROOT / "docs" / "reference"
RESULTS = ROOT / "docs" / "results"
