"""A reconciliation report as tables, and the console on which no table is cut."""

from __future__ import annotations

from itertools import groupby
from typing import IO

from rich.console import Console
from rich.table import Table

from isotherm.cli.reconciliation.report import Line, ReconciliationReport

_NARROWEST_TERMINAL = 130
"""A narrower terminal wraps the lines of a table, which reads better than cut figures."""
_FILE_WIDTH = 1_000
"""A pipe or a file has no width of its own; rich would take 80 columns and cut what is wider."""


def wide_console(file: IO[str] | None = None) -> Console:
    """The console of standard output, or of `file`, as wide as the tables need."""
    console = Console(file=file)
    console.width = max(console.width, _NARROWEST_TERMINAL if console.is_terminal else _FILE_WIDTH)
    return console


def show(report: ReconciliationReport, console: Console) -> None:
    """Print the lines, those with the same figures as one table, then the verdict with every reason."""
    for columns, lines in groupby(report.lines, key=lambda line: tuple(line.figures)):
        console.print(_table(columns, list(lines)))
    if report.adds_up:
        console.print("[green]Everything adds up.[/]")
        return
    console.print("[red]It does not add up:[/]")
    for problem in report.problems:
        console.print(f"  {problem}", markup=False, highlight=False, soft_wrap=True)


def _table(columns: tuple[str, ...], lines: list[Line]) -> Table:
    table = Table()
    table.add_column("", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for line in lines:
        figures = [f"{line.figures[name]:,}" for name in columns]
        table.add_row(line.title, *figures, "[green]adds up[/]" if line.adds_up else "[red]does not[/]")
    return table
