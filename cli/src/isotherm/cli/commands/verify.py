"""`isotherm verify`: whether rows of a store are exactly what receipts say. It needs no server."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from isotherm.cli.options import Format, FormatOption
from isotherm.cli.output import fail, note, refuse, write
from isotherm.cli.receipts.rows import FIELDS, ReadingRows
from isotherm.cli.receipts.verification import MOST_HOURS, Verdict, Verification
from isotherm.cli.times import time_ms_or_refuse
from isotherm.connector.receipts.receipt import HOUR_MS, KeyFileError, Receipt, newest, public_key
from isotherm.servicekit.exit_codes import Exit

_PROBLEMS_SHOWN = 50


def verify(
    rows: Annotated[list[str], typer.Argument(metavar="ROWS...", help="Files .csv, others JSON lines; - is stdin.")],
    receipts: Annotated[
        Path,
        typer.Option(
            "--receipts", metavar="FILE", help="What `isotherm tail isotherm.receipts --from-beginning` has printed."
        ),
    ],
    keys: Annotated[
        list[Path],
        typer.Option(
            "--public-key", metavar="FILE", help="A public key of the issuer in PEM; each one that it has had."
        ),
    ],
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic of the readings.")] = (
        "thermostat.data"
    ),
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Start of the span, a whole hour. Default: the first receipt."),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Its end, a whole hour. Default: the last receipt.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="FIELD=NAME", help=f"A column's name, for one of {', '.join(FIELDS)}."),
    ] = None,
    format_: FormatOption = None,
) -> None:
    """Prove that a store's rows are exactly the readings of a span that receipts tell of. Exit code 1: they are not.

    Needs the rows, the receipts and the issuer's public key, and no server. The store must have all readings, with
    device, metric, event time, sequence and value.
    """
    columns = _columns(column or ())
    try:
        issuer, given_receipts = [public_key(one) for one in keys], _receipts(receipts, topic)
        known = newest(given_receipts)
    except (KeyFileError, OSError, UnicodeDecodeError) as error:
        refuse(str(error))
    start_ms, end_ms = _span(from_, to, known)
    bad = _BadRows()
    _refuse_contradictions(known, given_receipts)
    reading_rows = ReadingRows(columns, bad.note)
    try:
        with Verification(known, issuer, start_ms, end_ms) as verification:
            for reading in chain.from_iterable(map(reading_rows.of, rows)):
                verification.add(reading)
            verdict = verification.verdict()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        fail(str(error))
    verdict.problems += bad.problems()
    _show(verdict, format_)


class _BadRows:
    """Rows that are no readings, of which the first ones are told."""

    def __init__(self) -> None:
        self._told: list[str] = []
        self._more = 0

    def note(self, what: str) -> None:
        if len(self._told) < _PROBLEMS_SHOWN:
            self._told.append(f"no reading: {what}")
        else:
            self._more += 1

    def problems(self) -> list[str]:
        return [*self._told, *([f"{self._more} more rows are no readings"] if self._more else [])]


def _show(verdict: Verdict, format_: Format | None) -> None:
    """Show what was found; ends with exit code 1 if the rows are not verified."""
    figures = {name: value for name, value in asdict(verdict).items() if name not in ("problems", "notes")}
    if format_ is Format.JSON:
        write(json.dumps({"verified": verdict.is_verified, **asdict(verdict)}, indent=2) + "\n")
    else:
        shown = {"verified": str(verdict.is_verified).lower(), **figures}
        write("".join(f"{name}={value}\n" for name, value in shown.items()))
        write("".join(f"problem={one}\n" for one in verdict.problems[:_PROBLEMS_SHOWN]))
        if len(verdict.problems) > _PROBLEMS_SHOWN:
            note(f"{len(verdict.problems) - _PROBLEMS_SHOWN} more problems")
    for one in verdict.notes:
        note(one)
    if not verdict.is_verified:
        raise typer.Exit(Exit.FAILED)


def _columns(given: Sequence[str]) -> dict[str, str]:
    columns = {}
    for text in given:
        field, equals, name = text.partition("=")
        if not equals or not name or field not in FIELDS:
            refuse(f"--column {text!r} is not FIELD=NAME with one of {', '.join(FIELDS)}")
        columns[field] = name
    return columns


def _receipts(path: Path, topic: str) -> list[Receipt]:
    """Read the receipts of a topic. Raises OSError."""
    found = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                given = json.loads(line)
                receipt = Receipt.of(given.get("value", given))
            except (ValueError, AttributeError, TypeError, RecursionError) as error:
                refuse(f"{path}:{number} is no receipt: {error}")
            if receipt.topic == topic:
                found.append(receipt)
    return found


def _refuse_contradictions(known: Mapping[int, Receipt], given: Sequence[Receipt]) -> None:
    """Two receipts of one revision that say different things may both be signed: nobody knows which one counts."""
    for one in given:
        counts = known[one.start_ms]
        if one.revision == counts.revision and not one.has_same_readings(counts):
            refuse(f"there are different receipts of one revision of {one.key}; leave only the one that counts")


def _span(from_: str | None, to: str | None, receipts: Mapping[int, Receipt]) -> tuple[int, int]:
    if not receipts and (from_ is None or to is None):
        refuse("there is no receipt of this topic; give --from and --to, or another --topic")
    start_ms = min(receipts) if from_ is None else _hour_or_refuse("--from", from_)
    end_ms = max(receipts) + HOUR_MS if to is None else _hour_or_refuse("--to", to)
    if start_ms >= end_ms:
        refuse("--from is not before --to")
    if end_ms - start_ms > MOST_HOURS * HOUR_MS:
        refuse(f"the span has more than {MOST_HOURS} hours; verify it in parts with --from and --to")
    return start_ms, end_ms


def _hour_or_refuse(option: str, text: str) -> int:
    time_ms = time_ms_or_refuse(option, text)
    if time_ms % HOUR_MS:
        refuse(f"{option} {text!r} is not a whole hour, and receipts are")
    return time_ms
