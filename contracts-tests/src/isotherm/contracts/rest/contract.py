"""The pact of the command line with the console: written from what each side uses of the other's documents.

What a mutation on the wire changes for the other side is in the pact: as it is, if another value changes something, and
by its type, if only another type does. What nobody uses is not in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pact import Pact, match

from isotherm.contracts.pact.matching import JSON, PactMatcher, matcher
from isotherm.contracts.rest.exchanges import Document, Exchange

CONSUMER, PROVIDER = "cli", "console"
FILE = f"{CONSUMER}-{PROVIDER}.json"
FOLDER = "rest"
"""Below the folders of pacts and of recordings."""
_EACH, _VALUE, _TYPE, _NAME, _ABSENCE = "*", "rescale", "retype", "rename", "drop"
_STRICT = "strict"
_STATE, _ANY_SUCCESS = "the console", "any success"

Uses = Mapping[tuple[str, str], Mapping[tuple[str, ...], set[str]]]
"""By exchange and side: the used places, each with the operators whose change is noticed."""


def write(exchanges: Mapping[str, Exchange], uses: Uses, folder: Path) -> Path:
    """Write the pact below a folder of pacts, with the used parts of each exchange; the file."""
    pact = Pact(CONSUMER, PROVIDER).with_specification("V4")
    for name, exchange in exchanges.items():
        asked, told = (
            _used(document, uses.get((name, side), {}))
            for side, document in (("request", exchange.request), ("response", exchange.response))
        )
        is_exact = _VALUE in uses[name, "response"].get(("status",), ())
        state: dict[str, object] = {
            "status": "exact" if is_exact else _ANY_SUCCESS,
            "optional": _optional(uses[name, "request"]),
        }
        interaction = pact.upon_receiving(name).given(_STATE, state)
        interaction.with_request(exchange.request["method"], exchange.request["path"])
        for key, values in asked.get("query", {}).items():
            for value in values:
                interaction.with_query_parameter(key, value)
        _fill(interaction, asked)
        interaction.will_respond_with(exchange.response["status"])
        _fill(interaction, told)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    pact.write_file(folder / FOLDER, overwrite=True)
    return folder / FOLDER / FILE


def record(exchanges: Mapping[str, Exchange], folder: Path) -> Path:
    """Write all of the exchanges below a folder of recordings; the file."""
    path = folder / FOLDER / f"{PROVIDER}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {name: one._asdict() for name, one in exchanges.items()}
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def recorded(folder: Path) -> dict[str, Exchange]:
    """The exchanges below a folder of recordings; none when they are not recorded."""
    path = folder / FOLDER / f"{PROVIDER}.json"
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {name: Exchange(**one) for name, one in content.items()}


def _fill(interaction: Any, part: Mapping[str, Any]) -> None:
    for key, text in part.get("headers", {}).items():
        interaction.with_header(key, text)
    if part.get("body") is not None:
        interaction.with_body(part["body"], JSON)


def _used(document: Document, places: Mapping[tuple[str, ...], set[str]]) -> dict[str, Any]:
    found: dict[str, Any] = _part(document, (), places)
    return found


def _part(value: Any, path: tuple[str, ...], places: Mapping[tuple[str, ...], set[str]]) -> Any:
    """The used part of a value; a matcher of its type where only the type counts."""
    if isinstance(value, dict) and value:
        inner = {key: (*path, key) for key in value if _is_used((*path, key), places)}
        return {key: _part(value[key], place, places) for key, place in inner.items()}
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return [_part(one, (*path, _EACH), places) for one in value]
    operators = places.get(path, set())
    if path[:1] == ("body",) and isinstance(value, (int, str)) and not operators & {_VALUE, _TYPE}:
        return match.regex(str(value), regex=r"[\s\S]*")  # It has to be there.
    if isinstance(value, int) and not isinstance(value, bool) and _VALUE in operators and _TYPE not in operators:
        return match.regex(str(value), regex=f"^{value}$")  # A text of the same digits would do.
    # Nothing but the presence of an empty value can be used.
    return value if _VALUE in operators or not value or path[:1] != ("body",) else match.type(value)


def _optional(places: Mapping[tuple[str, ...], set[str]]) -> dict[str, str]:
    """The parts of a request that may be missing, and whether the console refuses another name in their place."""
    return {
        ".".join(path): _STRICT if _NAME in operators else "loose"
        for path, operators in places.items()
        if path[0] in ("body", "query") and len(path) > 1 and _ABSENCE not in operators
    }


def _is_used(path: tuple[str, ...], places: Mapping[tuple[str, ...], set[str]]) -> bool:
    return any(place[: len(path)] == path for place in places)


def problems(folder: Path, exchanges: Mapping[str, Exchange], only: Iterable[str] | None = None) -> list[str]:
    """Where exchanges differ from the pact below a folder of pacts: what the command line asks, what it is told."""
    pact, checks = _read(folder)
    names = list(pact if only is None else only)
    found = [f"{name}: there is no such exchange" for name in names if name not in exchanges]
    for name in names:
        if name in exchanges:
            found += check(checks, pact[name], name, "request", exchanges[name].request)
            found += check(checks, pact[name], name, "response", exchanges[name].response)
    return found


def check(checks: PactMatcher, interaction: Mapping[str, Any], name: str, side: str, document: Document) -> list[str]:
    """Where one request or response differs from its interaction."""
    who = f"{PROVIDER} is asked by {CONSUMER}" if side == "request" else f"{CONSUMER} needs of {PROVIDER}"
    wanted = interaction["response"]["status"]
    found = []
    if side == "response" and not _is_status(document["status"], wanted, interaction):
        found.append(f"$.status: {document['status']} instead of {wanted}")
    if side == "request":
        asked = interaction["request"]
        found += [
            f"$.{part}: {document[part]!r} instead of {asked[part]!r}"
            for part in ("method", "path")
            if document[part] != asked[part]
        ]
    lines = checks.mismatches(f"{name} / {side}", _contents(document))
    if side == "request":
        optional = interaction["providerStates"][0]["params"]["optional"]
        lines = [line for line in lines if not _is_about_optional(line, optional, interaction["request"], document)]
    found += lines
    return [f"{who}, {name!r}: {line}" for line in found]


_MISSING = re.compile(r"\$\.(?P<path>[^:]*): Actual map is missing the following keys: (?P<keys>.*)")


def _is_about_optional(line: str, optional: Mapping[str, str], wanted: Mapping[str, Any], document: Document) -> bool:
    """Whether a mismatch only says that parts are missing that may be missing."""
    found = _MISSING.fullmatch(line)
    if found is None:
        return False
    names = [f"{found['path']}.{key}" for key in found["keys"].split(", ")]
    if not all(name in optional for name in names):
        return False
    asked = {"query": wanted.get("query", {}), "body": wanted.get("body", {}).get("content")}
    for step in found["path"].split("."):
        asked, document = asked[step], document[step]
    return document.keys() <= asked.keys() or all(optional[name] != _STRICT for name in names)


def _is_status(status: int, wanted: int, interaction: Mapping[str, Any]) -> bool:
    loose = interaction["providerStates"][0]["params"]["status"] == _ANY_SUCCESS and wanted < 300
    return 200 <= status < 300 if loose else status == wanted


def _contents(document: Document) -> dict[str, Any]:
    return {
        "query": document.get("query", {}),
        "headers": {key.lower(): text for key, text in document["headers"].items()},
        "body": document["body"],
    }


def names(folder: Path) -> list[str]:
    """The exchanges in the pact below a folder of pacts; none when there is no pact."""
    return list(_read(folder)[0]) if (folder / FOLDER / FILE).is_file() else []


def interactions(folder: Path) -> tuple[Mapping[str, Any], PactMatcher]:
    """The interactions of the pact below a folder of pacts, and what matches them."""
    return _read(folder)


def _read(folder: Path) -> tuple[dict[str, Any], PactMatcher]:
    """The interactions by name, and a matcher of their requests and responses as plain JSON."""
    content = json.loads((folder / FOLDER / FILE).read_text(encoding="utf-8"))
    by_name = {one["description"]: one for one in content["interactions"]}
    plain = [_plain(f"{name} / {side}", one[side]) for name, one in by_name.items() for side in ("request", "response")]
    return by_name, matcher(json.dumps({**content, "interactions": plain}))


def _plain(name: str, part: Mapping[str, Any]) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "query": part.get("query", {}),
        "headers": {key.lower(): texts[0] for key, texts in part.get("headers", {}).items() if key != "Content-Type"},
    }
    if "body" in part:
        wanted["body"] = part["body"]["content"]
    rules = part.get("matchingRules", {}).get("body", {})
    return {
        "description": name,
        "contents": {"content": wanted},
        "matchingRules": {"body": {path.replace("$", "$.body", 1): rule for path, rule in rules.items()}},
    }
