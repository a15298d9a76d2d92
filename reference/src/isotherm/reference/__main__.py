"""`python -m isotherm.reference`: write the generated pages of docs/reference."""

from __future__ import annotations

import sys

from isotherm.reference.pages import update


def main() -> int:
    """Write the pages and name them."""
    for path in update():
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
