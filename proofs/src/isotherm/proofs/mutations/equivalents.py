"""Mutants that change nothing of which a promise speaks, each with the reason: `proofs/equivalent-mutants.toml`.

An entry names a mutant by its file, function and change, because line numbers move. It says how many mutants it means
when a function has the same change several times. An entry that means another number of mutants is an error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from isotherm.proofs.mutations.operators import Mutant

FILE = Path(__file__).resolve().parents[4] / "equivalent-mutants.toml"
_KEYS = {"file", "function", "change", "reason"}


class StaleEntry(Exception):
    """An entry does not say what it is about, or is about mutants that do not exist."""


def equivalent(mutants: Iterable[Mutant], file: Path = FILE) -> dict[Mutant, str]:
    """Return the mutants that the file names, with the reason of each.

    Raises StaleEntry for an entry about one of their files that does not match; so `mutants` must have all of a file.
    """
    of_file: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        of_file.setdefault(mutant.file, []).append(mutant)
    found: dict[Mutant, str] = {}
    for entry in read(file):
        if entry["file"] not in of_file:
            continue
        named = [
            mutant
            for mutant in of_file[str(entry["file"])]
            if mutant.function == entry["function"] and mutant.change == entry["change"]
        ]
        if len(named) != entry.get("mutants", 1):
            raise StaleEntry(f"{len(named)} mutants match {entry}")
        found |= dict.fromkeys(named, str(entry["reason"]))
    return found


def read(file: Path = FILE) -> Sequence[dict[str, str | int]]:
    """Return the entries of the file; raise StaleEntry if one lacks a key or a reason, or has another key."""
    entries: list[dict[str, str | int]] = tomllib.loads(file.read_text(encoding="utf-8")).get("equivalent", [])
    for entry in entries:
        if entry.keys() - {"mutants"} != _KEYS or not entry["reason"]:
            raise StaleEntry(f"an entry needs {', '.join(sorted(_KEYS))}: {entry}")
    return entries
