"""`python -m isotherm.deploy`: write the generated files, pack the charts, renew Kubernetes' schemas."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from isotherm.deploy import charts, generate, kubernetes_schemas


def main() -> int:
    """Entry point; exit code 1 with Helm's message when Helm refuses."""
    parser = argparse.ArgumentParser(prog="python -m isotherm.deploy", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("update", help="write values schemas, dashboards and alert rules anew")
    packing = commands.add_parser("pack", help="archives of the umbrella and of every chart")
    packing.add_argument("folder", type=Path, help="the folder of the archives; its old content is deleted")
    renewing = commands.add_parser("kubernetes-schemas", help="write deploy/kubernetes-schemas anew")
    renewing.add_argument("openapi", type=Path, help="Kubernetes' api/openapi-spec/swagger.json")
    renewing.add_argument("definitions", type=Path, nargs="*", help="files with a CustomResourceDefinition each")
    arguments = parser.parse_args()
    try:
        written = _write(arguments)
    except charts.ChartError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


def _write(arguments: argparse.Namespace) -> list[Path]:
    if arguments.command == "pack":
        return charts.pack(arguments.folder)
    if arguments.command == "kubernetes-schemas":
        return kubernetes_schemas.update(arguments.openapi, arguments.definitions)
    return generate.update()


if __name__ == "__main__":
    sys.exit(main())
