"""`isotherm rules`: list, try, apply and delete rules of alerts. The console does it, and the alerts service judges."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from isotherm.cli.connect import formats
from isotherm.cli.connect.session import connected, content_of, show
from isotherm.cli.options import EndpointOption, FormatOption
from isotherm.cli.output import note, refuse

_MAX_BYTES = 4_194_304

RuleArgument = Annotated[str, typer.Argument(metavar="RULE", help="Its id, as `rules list` prints it.")]
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="TOML with [[rules]] tables, or JSON (*.json): a rule or a list of them.")
]

rules_app = typer.Typer(
    help="List, try, apply and delete rules of alerts (only with the console).",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@rules_app.command("list")
def rules_list(endpoint: EndpointOption = None, format_: FormatOption = None) -> None:
    """List the rules of the topic, which stand above those in the settings of the alerts service."""
    with connected(endpoint) as connect:
        found = connect.rules()
    lines = "".join(f"{one['rule_id']}={json.dumps(one['rule'], sort_keys=True)}\n" for one in found)
    show(found, format_, lines, lambda console: _show_rules(found, console))
    for one in found:
        if one["problem"]:
            note(f"{one['rule_id']} is not in force: {one['problem']}")


@rules_app.command("get")
def rules_get(rule: RuleArgument, endpoint: EndpointOption = None) -> None:
    """Print a rule as JSON, which `rules apply` reads."""
    with connected(endpoint) as connect:
        found = connect.rule(rule)
    typer.echo(json.dumps(found["rule"], indent=2, sort_keys=True))


@rules_app.command("apply")
def rules_apply(file: FileArgument, endpoint: EndpointOption = None) -> None:
    """Create or change rules. Each takes effect at once; a changed one closes its open alerts.

    Ends at the first rule that is refused: those before it are applied.
    """
    rules = _rules_in(file)
    with connected(endpoint) as connect:
        for rule in rules:
            done = connect.put_rule(_id_of(rule), rule)
            note(f"{done['rule_id']} is applied")


@rules_app.command("delete")
def rules_delete(rule: RuleArgument, endpoint: EndpointOption = None) -> None:
    """Remove a rule of the topic. Its open alerts close; a rule of the settings with its name is in force again."""
    with connected(endpoint) as connect:
        connect.delete_rule(rule)
    note(f"{rule} is deleted")


@rules_app.command("try")
def rules_try(
    file: FileArgument,
    hours: Annotated[int, typer.Option("--hours", min=1, max=168, help="Over how many of the last hours.")] = 24,
    endpoint: EndpointOption = None,
    format_: FormatOption = None,
) -> None:
    """Print how often rules would have fired over the readings of the last hours. Nothing is changed."""
    rules = _rules_in(file)
    with connected(endpoint) as connect:
        found = [{"rule_id": _id_of(rule), **connect.try_rule(rule, hours)} for rule in rules]
    lines = "".join(
        f"{one['rule_id']}={one['fired']} alerts of {one['devices']} devices on {one['readings']} readings\n"
        for one in found
    )
    show(found, format_, lines, lambda console: _show_trials(found, console))
    for one in found:
        if not one["is_complete"]:
            note(f"{one['rule_id']}: the period has more readings than a trial reads; the newest were tried")


def _rules_in(file: Path) -> list[dict[str, Any]]:
    content = content_of(file, _MAX_BYTES)
    try:
        text = content.decode()
        found = json.loads(text) if file.suffix == ".json" else tomllib.loads(text).get("rules", [])
    except (ValueError, RecursionError) as error:
        refuse(f"{file} cannot be read: {error}")
    rules = [found] if isinstance(found, dict) else found
    if not isinstance(rules, list) or not rules or not all(isinstance(rule, dict) for rule in rules):
        refuse(f"{file} has no rules; expected [[rules]] tables, or in JSON an object or a list of objects")
    return rules


def _id_of(rule: Mapping[str, Any]) -> str:
    name = str(rule.get("name") or rule.get("kind") or "")
    if not name:
        refuse(f"a rule has no kind: {json.dumps(rule, default=str)[:200]}")
    return f"{rule['metric']}.{name}" if rule.get("metric") else name


def _show_rules(found: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = formats.table("rule", "definition", "by", "problem")
    for one in found:
        definition = Text(json.dumps(one["rule"], sort_keys=True))
        table.add_row(Text(one["rule_id"]), definition, Text(one["updated_by"]), Text(one["problem"] or ""))
    console.print(table)


def _show_trials(found: Sequence[Mapping[str, Any]], console: Console) -> None:
    table = formats.table("rule", "alerts", "devices", "readings")
    for one in found:
        table.add_row(Text(one["rule_id"]), str(one["fired"]), str(one["devices"]), str(one["readings"]))
    console.print(table)
