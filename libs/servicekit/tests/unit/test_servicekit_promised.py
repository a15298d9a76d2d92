"""Properties on which a promise rests: an error at the start that names key, value and reason."""

from __future__ import annotations

from typing import Any

import pytest

from isotherm.servicekit.kafka import clients
from isotherm.servicekit.promised_properties import PROMISED, broken_promise
from isotherm.servicekit.settings import (
    KafkaSettings,
    ServiceSettings,
    SettingsError,
    load,
)

BROKEN = [
    ("acks", "1"),
    ("request.required.acks", "0"),
    ("enable.idempotence", "false"),
    ("isolation.level", "read_uncommitted"),
    ("enable.auto.commit", "true"),
    ("auto.commit.enable", "true"),
    ("transactional.id", "mine"),
    ("group.id", "mine"),
    ("client.id", "mine"),
    ("partitioner", "random"),
    ("delivery.report.only.error", "true"),
    ("auto.offset.reset", "latest"),
]


def problems(*properties: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as refused:
        load(ServiceSettings, "s", environ={}, overrides=[f"kafka.properties={','.join(properties)}"])
    return refused.value.problems


@pytest.mark.parametrize(("key", "value"), BROKEN)
def test_property_on_which_a_promise_rests_ends_the_start(key: str, value: str) -> None:
    (problem,) = problems(f"{key}={value}", "sasl.password=geheim")

    assert problem.startswith(f"kafka.properties (--set): {key}: {value!r} is not allowed")
    assert PROMISED[key].why in problem
    assert "geheim" not in problem


def test_all_of_them_are_named_at_once() -> None:
    (problem,) = problems("acks=1", "enable.auto.commit=true")

    assert "acks" in problem
    assert "enable.auto.commit" in problem


@pytest.mark.parametrize(("key", "value"), [("acks", "ALL"), ("enable.auto.commit", "False"), ("linger.ms", "9")])
def test_what_keeps_the_promise_may_be_said(key: str, value: str) -> None:
    assert broken_promise(key, value) is None
    assert KafkaSettings(properties={key: value}).properties == {key: value}


def test_a_connector_may_begin_at_the_end_a_process_may_not() -> None:
    assert broken_promise("auto.offset.reset", "latest") is not None
    assert broken_promise("auto.offset.reset", "latest", of_connector=True) is None


def test_a_client_that_has_to_differ_is_not_changed_by_what_keeps_the_promise() -> None:
    """The aggregator's clock reads uncommitted records on purpose; nothing that it reads is stored."""
    settings = KafkaSettings(properties={"isolation.level": "read_committed", "client.rack": "a"})

    config: dict[str, Any] = clients.client_config(settings, "me", isolation_level="read_uncommitted")

    assert (config["isolation.level"], config["client.rack"]) == ("read_uncommitted", "a")
