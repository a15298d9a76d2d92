"""Of what code a result is."""

from __future__ import annotations

import subprocess


def commit() -> str:
    """Return the commit of the working tree, with + behind it where files differ; `unknown` outside a repository."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"], capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"
