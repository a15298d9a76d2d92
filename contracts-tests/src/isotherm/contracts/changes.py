"""What an update changes in pacts and recordings, and the file that keeps the reason for each change.

A pact or recording is what consumers rely on. Without a reason it is not written anew, so a number that changed by
mistake is not silenced by a command. The digest in the newest entry tells when a file was changed by hand.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isotherm.contracts.harness import Harness, Message, text_of
from isotherm.contracts.pact import recordings
from isotherm.contracts.paths import PACTS, RECORDINGS
from isotherm.contracts.rest import contract

LOG = "CHANGES.md"
_MOST_LINES = 40
_HEAD = """# Changes of pacts and recordings

`make contracts-update REASON="..."` adds an entry: the reason, what changed, and the digest of all files.
Read the entry in a review: each line is something that a consumer has relied on.
"""


class ReasonMissingError(Exception):
    """Pacts or recordings would change, and nobody has said why."""


def between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """One line for each leaf that differs: `name: old -> new`, with `absent` where there is none."""
    was, found = dict(_leaves(before)), dict(_leaves(after))
    return [
        f"{name}: {was.get(name, 'absent')} -> {found.get(name, 'absent')}"
        for name in sorted(was.keys() | found.keys())
        if was.get(name) != found.get(name)
    ]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, of in value.items():
            yield from _leaves(of, f"{name} / {key}" if name else str(key))
    else:
        yield name, json.dumps(value, ensure_ascii=False)


def of_folder(folder: Path, harness: Harness) -> dict[str, Any]:
    """The pacts and recordings below a folder `contracts-tests`, in a form that `between` compares by field."""
    return {
        "pacts": {path.stem: _pact(path) for path in sorted((folder / PACTS.name).rglob("*.json"))},
        "recordings": {
            provider: {name: _message(one, harness) for name, one in messages.items()}
            for provider, messages in recordings.read(folder / RECORDINGS.name, harness).items()
        },
        "exchanges": {name: one._asdict() for name, one in contract.recorded(folder / RECORDINGS.name).items()},
    }


def _pact(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    return {one["description"]: one for one in content["interactions"]}


def _message(message: Message, harness: Harness) -> dict[str, Any]:
    is_declared = message.topic in harness.catalog.records
    value = harness.decode(message.value) if is_declared else text_of(message.value)
    return {**message._asdict(), "value": _readable(value)}


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, list):
        return [_readable(of) for of in value]
    return {name: _readable(of) for name, of in value.items()} if isinstance(value, Mapping) else value


def digest(folder: Path) -> str:
    """The digest of all pacts and recordings below a folder `contracts-tests`."""
    files = sorted(path for part in (PACTS, RECORDINGS) for path in (folder / part.name).rglob("*.json"))
    found = hashlib.sha256()
    for path in files:
        found.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def newest_digest(folder: Path) -> str:
    """The digest in the newest entry of the log below a folder `contracts-tests`; empty when there is none."""
    path = folder / RECORDINGS.name / LOG
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next((line.removeprefix("Digest: ") for line in reversed(lines) if line.startswith("Digest: ")), "")


def add_entry(folder: Path, reason: str, lines: list[str]) -> Path:
    """Add an entry to the log below a folder `contracts-tests`; return the file."""
    path = folder / RECORDINGS.name / LOG
    text = path.read_text(encoding="utf-8") if path.is_file() else _HEAD
    shown = [f"- `{line}`" for line in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        shown.append(f"- and {len(lines) - _MOST_LINES} more")
    path.write_text(
        "\n".join([text, f"## {reason}", "", *shown, "", f"Digest: {digest(folder)}", ""]), encoding="utf-8"
    )
    return path
