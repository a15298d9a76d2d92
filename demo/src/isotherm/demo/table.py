"""The report as tables for the terminal."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.table import Table

from isotherm.demo.reconciliation import Line, ReconciliationReport


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
