"""What the settings of the command line accept and refuse."""

from __future__ import annotations

import pytest

from isotherm.cli import settings as cli_settings
from isotherm.cli.apply import declared_topics
from isotherm.servicekit.settings import SettingsError


def test_a_topic_is_declared_with_the_given_partitions() -> None:
    settings = cli_settings.read(overrides=["partitions=thermostat.data=32,temperatures.aggregated=16"])

    counts = {topic.name: topic.partitions for topic in declared_topics(settings.partitions)}

    assert (counts["thermostat.data"], counts["temperatures.aggregated"]) == (32, 16)
    declared = {topic.name: topic.partitions for topic in declared_topics()}
    assert {name for name in counts if counts[name] != declared[name]} == {"thermostat.data", "temperatures.aggregated"}


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("thermostat.dat=32", "'thermostat.dat' is not one of alerts, brightness"),
        ("isotherm.tasks=32", "'isotherm.tasks' is not one of"),
        ("thermostat.data=0", "greater than 0"),
        ("thermostat.data=many", "valid integer"),
    ],
)
def test_invalid_partition_counts_are_refused(given: str, part: str) -> None:
    with pytest.raises(SettingsError, match=part):
        cli_settings.read(overrides=[f"partitions={given}"])
