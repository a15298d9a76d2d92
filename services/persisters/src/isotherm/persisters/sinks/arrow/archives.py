"""What all archives refuse in a configuration."""

from __future__ import annotations

from isotherm.connector.config.validation import Problem, Validated
from isotherm.persisters.api.statements import null_behaviour


def problems(config: Validated, prefix: str) -> list[Problem]:
    """Return what an archive cannot do that the statements of a configuration ask for."""
    found = []
    for statement in config.statements:
        why = []
        if statement.mode == "UPSERT":
            why.append("UPSERT changes what is stored, and an archive keeps every record: use INSERT")
        if null_behaviour(statement) == "DELETE":
            why.append("behavior.on.null.values=DELETE: an archive deletes nothing; use IGNORE or FAIL")
        found += [Problem(f"{prefix}.kcql", f"{each} (in {statement.text!r})") for each in why]
    return found
