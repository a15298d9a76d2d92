"""`python -m isotherm_deploy`: write what is generated; pack the charts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from isotherm_deploy import charts, generate


def main() -> int:
    """Entry point; exit code 1 with Helm's own words when it refuses."""
    parser = argparse.ArgumentParser(prog="isotherm_deploy", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("update", help="write values schemas, dashboards and alert rules anew")
    packing = commands.add_parser("pack", help="archives of the umbrella and of every chart")
    packing.add_argument("folder", type=Path, help="where they go; what is in it goes")
    arguments = parser.parse_args()
    try:
        written = charts.pack(arguments.folder) if arguments.command == "pack" else generate.update()
    except charts.ChartError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
