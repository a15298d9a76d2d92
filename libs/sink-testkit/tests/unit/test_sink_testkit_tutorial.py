"""The tutorial shows the sink that is tested, every line of it but its imports."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[4]
SINK = (ROOT / "examples" / "sqlite-sink" / "sqlite_sink.py").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "tutorials" / "write-a-sink.md").read_text(encoding="utf-8")
MOST_LINES = 80


def test_the_tutorial_shows_the_file_as_it_is() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 6
    for block in blocks:
        assert block.strip("\n") in SINK
    shown = {line for block in blocks for line in block.splitlines()}
    body = SINK.partition("_keys = ")[1] + SINK.partition("_keys = ")[2]
    assert {line for line in body.splitlines() if line} <= shown | {""}


def test_the_sink_is_short() -> None:
    assert len(SINK.splitlines()) < MOST_LINES
