"""`isotherm topics`."""

from __future__ import annotations

from confluent_kafka import KafkaException

from isotherm.cli import settings
from isotherm.cli import topics as topic_list
from isotherm.cli.options import ConfigOption, KafkaOption, SetOption
from isotherm.cli.output import fail, write
from isotherm.servicekit.kafka.errors import reason_of


def topics(kafka: KafkaOption = None, config: ConfigOption = None, set_: SetOption = None) -> None:
    """List the topics: name, partitions, records at most, and declared record."""
    loaded = settings.load(kafka, None, config, set_)
    try:
        write(topic_list.text(topic_list.listed(loaded.kafka)))
    except KafkaException as error:
        fail(reason_of(error))
