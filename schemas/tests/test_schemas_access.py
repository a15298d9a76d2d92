"""The access of services beside the topic book: complete, without repetitions, and read strictly."""

from __future__ import annotations

from collections import Counter

import pytest

import isotherm.schemas
from isotherm.schemas.access import AccessError, Every, Operation, Permission, Resource, access, parse_access

SERVICES = access().services


def test_every_reader_and_writer_of_the_topic_book_is_a_service_or_has_no_principal() -> None:
    named = {
        name
        for topic in isotherm.schemas.topics()
        for name in (topic.owner, *topic.writers, *(reader.service for reader in topic.readers))
    }

    assert named - SERVICES.keys() - access().without_principal.keys() == set()
    assert access().without_principal.keys() - named == set()


def test_nothing_that_the_topic_book_says_is_repeated() -> None:
    repeated = []
    for service, permissions in SERVICES.items():
        for one in permissions:
            topic = next((each for each in isotherm.schemas.topics() if each.name == one.name), None)
            if one.resource is not Resource.TOPIC or topic is None:
                continue
            if Operation.WRITE in one.operations and service in topic.writers:
                repeated.append((service, topic.name, "write"))
            if Operation.READ in one.operations and service in {reader.service for reader in topic.readers}:
                repeated.append((service, topic.name, "read"))

    assert repeated == []


def test_each_resource_of_a_service_stands_once_and_says_why() -> None:
    for service, permissions in SERVICES.items():
        keys = Counter((one.resource, one.name, one.prefix, one.all, one.read_by) for one in permissions)
        assert [key for key, count in keys.items() if count > 1] == [], service
        assert all(one.why.endswith(".") for one in permissions), service


def test_an_entry_is_read_with_all_its_parts() -> None:
    text = """
services:
  persisters:
    topics:
    - {all: dead-letters, may: [read], why: Because.}
    groups:
    - {name: 'connect-{connector}', of: coap-ingest, may: [read, delete], why: Because.}
"""

    assert parse_access(text).services["persisters"] == (
        Permission(Resource.TOPIC, (Operation.READ,), "Because.", all=Every.DEAD_LETTERS),
        Permission(
            Resource.GROUP,
            (Operation.READ, Operation.DELETE),
            "Because.",
            name="connect-{connector}",
            of="coap-ingest",
        ),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("services: [", "no YAML"),
        ("service: {}", "the file: unknown key service; known are services, without_principal"),
        ("[]", "the file: no mapping"),
        ("services: {alerts: {topic: []}}", "alerts: unknown key topic; known are topics, groups, transactional_ids"),
        ("services: {alerts: {topics: {name: x}}}", "alerts, topics: no list"),
        ("services: {alerts: {topics: [x]}}", "alerts, entry 1 of topics: no mapping"),
        ("services: {alerts: {topics: [{may: [read]}]}}", "it needs one of name, prefix, all, read_by"),
        ("services: {alerts: {topics: [{name: x, prefix: x, may: [read]}]}}", "it needs one of"),
        ("services: {alerts: {groups: [{all: declared, may: [read]}]}}", "all is for topics only"),
        ("services: {alerts: {topics: [{name: x, may: []}]}}", "must not be empty"),
        ("services: {alerts: {topics: [{name: '', may: [read]}]}}", "must not be empty"),
        ("services: {alerts: {topics: [{name: x, may: [fly]}]}}", "'fly' is not a valid Operation"),
        ("services: {alerts: {topics: [{name: x, may: read}]}}", "may: no list"),
        ("services: {alerts: {topics: [{all: topics, may: [read]}]}}", "'topics' is not a valid Every"),
    ],
)
def test_another_form_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(AccessError) as refused:
        parse_access(text)

    assert problem in str(refused.value)
