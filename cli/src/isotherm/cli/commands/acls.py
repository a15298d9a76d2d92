"""`isotherm acls`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from confluent_kafka import KafkaException

from isotherm.cli import settings
from isotherm.cli.acls import cluster, formats
from isotherm.cli.acls.permissions import Acl, NamesError
from isotherm.cli.acls.plan import plan, text_of
from isotherm.cli.acls.required import required_acls_of
from isotherm.cli.options import ConfigOption, KafkaOption, SetOption
from isotherm.cli.output import fail, note, refuse, write
from isotherm.cli.settings import CliSettings
from isotherm.schemas.access import AccessError
from isotherm.servicekit.kafka import clients
from isotherm.servicekit.kafka.errors import reason_of

app = typer.Typer(
    help="Print or apply the ACLs that the services need in Kafka.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

_ServiceOption = Annotated[
    list[str] | None, typer.Option("--service", metavar="NAME", help="Only this service; may be repeated.")
]


class AclFormat(StrEnum):
    """Values of `print --format`."""

    COMMANDS = "commands"
    JSON = "json"


@app.callback()
def _acls() -> None:
    """Print or apply the ACLs that the services need in Kafka."""


@app.command("print")
def print_(
    format_: Annotated[
        AclFormat, typer.Option("--format", case_sensitive=False, help="Calls of kafka-acls.sh, or JSON with reasons.")
    ] = AclFormat.COMMANDS,
    command_config: Annotated[
        str | None, typer.Option("--command-config", metavar="FILE", help="The file with which kafka-acls.sh logs in.")
    ] = None,
    service: _ServiceOption = None,
    kafka: KafkaOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Print the ACLs that the services need, without asking Kafka."""
    loaded = settings.load(kafka, None, config, set_)
    acls = _required(loaded, service)
    if format_ is AclFormat.JSON:
        write(formats.as_json(acls))
    else:
        write(formats.as_commands(acls, loaded.kafka.bootstrap_servers, command_config))


@app.command("apply")
def apply(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be changed, and change nothing.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete what allows one of the principals anything else.")
    ] = False,
    service: _ServiceOption = None,
    kafka: KafkaOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Create the ACLs that the services need, and with --prune delete all others of their principals.

    Safe to repeat. Prints one line for each change. ACLs of other principals and ACLs that deny something are never
    changed. The login needs Alter and Describe of the cluster.
    """
    loaded = settings.load(kafka, None, config, set_)
    required = _required(loaded, service)
    admin = clients.admin(loaded.kafka, "isotherm-acls")
    try:
        todo = plan(required, cluster.existing_acls(admin, {acl.principal for acl in required}), prune=prune)
        if not dry_run:
            cluster.create(admin, todo.create)
            cluster.delete(admin, todo.delete)
    except (cluster.AclsUnavailableError, KafkaException) as error:
        fail(reason_of(error))
    write("".join(f"created: acl {text_of(one)}\n" for one in todo.create))
    write("".join(f"deleted: acl {text_of(one)}\n" for one in todo.delete))
    note("\n".join(f"not required, stays without --prune: {text_of(one)}" for one in todo.undeclared))
    note("\n".join(f"denied, stays: {text_of(one)}" for one in todo.denials))
    changes = len(todo.create) + len(todo.delete)
    note(f"{changes} {'would be changed' if dry_run else 'changed'}, {todo.unchanged} unchanged")


def _required(loaded: CliSettings, service: list[str] | None) -> dict[Acl, str]:
    try:
        return required_acls_of(loaded.acls, service or ())
    except (NamesError, AccessError, OSError) as error:
        refuse(str(error))
