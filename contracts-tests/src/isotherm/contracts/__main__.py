"""`python -m isotherm.contracts`: write generated files, record a release, check whether a service can be deployed."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

from isotherm.contracts import changes, deploy, generate, releases, schema_catalog
from isotherm.contracts.harness import Harness
from isotherm.contracts.mutations import table
from isotherm.contracts.paths import RESULTS
from isotherm.contracts.providers import PROVIDERS


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; exit code 1 for a broken contract or a missing reason, 2 for a version without contracts."""
    os.environ["PACT_DO_NOT_TRACK"] = "true"
    parser = argparse.ArgumentParser(prog="python -m isotherm.contracts", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    update = commands.add_parser("update", help="write pacts, recordings and the AsyncAPI document anew")
    update.add_argument("--reason", default="", help="why pacts or recordings change; kept in recordings/CHANGES.md")
    record = commands.add_parser("release", help="record the contracts and schema versions of this version")
    record.add_argument("version", help="the version of the packages, such as 0.9.0")
    mutations = commands.add_parser("mutations", help="mutate everything that is published; print and keep a table")
    mutations.add_argument("--output", type=Path, default=RESULTS / "contract-mutations.txt", help="file of the table")
    check = commands.add_parser("can-deploy", help="check a service's working tree against a deployed version")
    check.add_argument("service", choices=sorted({*PROVIDERS, *deploy.consumers()}))
    check.add_argument(
        "--deployed", default="", help="tag, recorded release, commit or folder; default: newest tag, release, or HEAD"
    )
    arguments = parser.parse_args(argv)
    if arguments.command == "update":
        try:
            for line in generate.update(arguments.reason):
                sys.stdout.write(f"{line}\n")
        except changes.ReasonMissingError as error:
            sys.stderr.write(
                f'{error}\nnothing is written: these change; say why: make contracts-update REASON="..."\n'
            )
            return 1
        return 0
    if arguments.command == "mutations":
        return _mutate(arguments.output)
    try:
        if arguments.command == "release":
            sys.stdout.write(f"{releases.record_release(arguments.version)}\n")
            return 0
        with deploy.deployed(arguments.deployed) as (name, folder):
            verdict = deploy.can_deploy(arguments.service, folder)
    except (deploy.NotDeployedError, releases.ReleaseError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(f"{arguments.service}, working tree, against {name}\n")
    sys.stdout.write("".join(f"  {line}\n" for line in verdict.lines()))
    sys.stdout.write(f"{arguments.service} {'can' if verdict.allowed else 'can NOT'} be deployed\n")
    return 0 if verdict.allowed else 1


def _mutate(output: Path) -> int:
    """Run every mutation; exit code 1 when one is caught that nobody uses, or used and not caught."""
    # Consumers log every mutant that they refuse.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with Harness(schema_catalog.current()) as harness:
        found = table.all_verdicts(harness, {name: make(harness) for name, make in PROVIDERS.items()})
    before = table.runs(output.read_text(encoding="utf-8")) if output.exists() else []
    now = table.run_line(found, f"{datetime.now(UTC):%Y-%m-%d}", deploy.commit())
    text = "".join(f"{line}\n" for line in table.lines(found, [*before, now]))
    output.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0 if all(one.is_right for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
