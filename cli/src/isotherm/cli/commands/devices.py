"""`isotherm devices`."""

from __future__ import annotations

from typing import Annotated

import typer
from confluent_kafka import KafkaException

from isotherm.cli import devices, settings
from isotherm.cli.options import ConfigOption, KafkaOption, RegistryOption, SetOption
from isotherm.cli.output import fail, note
from isotherm.servicekit.avro import RegistryUnavailableError, SchemaNotRegisteredError
from isotherm.servicekit.exit_codes import Exit
from isotherm.servicekit.kafka.errors import reason_of

app = typer.Typer(
    help="Manage the metadata of devices.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@app.callback()
def _devices() -> None:
    """Manage the metadata of devices."""


@app.command("import")
def import_(
    file: Annotated[typer.FileText, typer.Argument(help="JSON lines, one device each; - is stdin.")],
    kafka: KafkaOption = None,
    registry: RegistryOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
) -> None:
    """Store metadata of devices (home, room, region, model, thresholds) in the compacted topic `devices`."""
    loaded = settings.load(kafka, registry, config, set_)
    try:
        imported = devices.import_lines(file, loaded.kafka, loaded.registry)
    except (SchemaNotRegisteredError, RegistryUnavailableError, KafkaException) as error:
        fail(reason_of(error))
    for problem in imported.problems:
        note(problem)
    note(f"{imported.stored} devices stored")
    if imported.problems:
        raise typer.Exit(Exit.FAILED)
