"""`python -m isotherm_deploy update`: write values schemas, dashboards and alert rules anew."""

from __future__ import annotations

import argparse
import sys

from isotherm_deploy import generate


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="isotherm_deploy", description=__doc__)
    parser.add_subparsers(dest="command", required=True).add_parser("update", help="write what is generated")
    parser.parse_args()
    for path in generate.update():
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
