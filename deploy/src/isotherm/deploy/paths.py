"""Where things are in a working tree."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[4]
CHARTS = ROOT / "deploy" / "charts"
EXAMPLES = ROOT / "deploy" / "examples"
RUNBOOKS = "docs/runbooks"
"""Relative to the root, as it stands in alert rules."""
