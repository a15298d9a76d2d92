"""Entry point of the command `isotherm`."""

from __future__ import annotations

from isotherm.cli.app import app


def main() -> None:
    """Run the command."""
    app()


if __name__ == "__main__":
    main()
