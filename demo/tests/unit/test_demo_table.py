from io import StringIO

from isotherm.cli.reconciliation.report import Line, ReconciliationReport
from isotherm.cli.reconciliation.table import show, wide_console

TITLE = "a title as long as that of a store and its topic"


def test_tables_are_not_cut_without_a_terminal() -> None:
    figures = {f"a figure with a long name {number}": 10**12 + number for number in range(8)}
    written = StringIO()

    show(ReconciliationReport((Line(TITLE, figures),)), wide_console(written))

    text = written.getvalue()
    assert TITLE in text
    assert all(name in text for name in figures)
    assert all(f"{figure:,}" in text for figure in figures.values())
    assert "…" not in text
