"""The balance as a table for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from demo.balance import Balance

_COLUMNS = (
    "published",
    "acknowledged",
    "stored",
    "records",
    "in windows",
    "late",
    "dead letters",
    "identities",
    "rows",
    "extra copies",
    "missing",
)


def show(balance: Balance, console: Console) -> None:
    """Print every line with its figures, then the verdict with every reason."""
    used = [name for name in _COLUMNS if any(name in line.figures for line in balance.lines)]
    table = Table(title="Balance", title_justify="left")
    table.add_column("")
    for name in used:
        table.add_column(name, justify="right")
    table.add_column("")
    for line in balance.lines:
        figures = [f"{line.figures[name]:,}" if name in line.figures else "" for name in used]
        table.add_row(line.title, *figures, "[green]adds up[/]" if line.adds_up else "[red]does not[/]")
    console.print(table)
    if balance.adds_up:
        console.print("[green]Everything adds up.[/]")
        return
    console.print("[red]It does not add up:[/]")
    for problem in balance.problems:
        console.print(f"  {problem}", markup=False, highlight=False)
