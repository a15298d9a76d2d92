"""docs/explanation/promises.md counts the calls and differences of the comparison with a real worker."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
from console_calls import Call, Side, steps

ROOT = Path(__file__).parents[4]
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def test_the_promise_counts_the_calls_and_the_differences() -> None:
    side = Side(httpx.Client(), "name", "a.Class", "topic", "/folder/file")
    calls = sum(1 for step in steps(side) if isinstance(step, Call))
    differences = json.loads((Path(__file__).parents[1] / "integration/differences.json").read_text(encoding="utf-8"))
    promised = re.findall(
        r"(\d+) calls get the status codes and keys of a real Connect worker, but for (\w+) that say why not",
        (ROOT / "docs/explanation/promises.md").read_text(encoding="utf-8"),
    )

    assert promised == [(str(calls), WORDS[len(differences)])]
