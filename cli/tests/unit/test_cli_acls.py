"""The ACLs that an installation needs, compared with those of a cluster, and printed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from hypothesis import given
from hypothesis import strategies as st

import isotherm.schemas
from isotherm.cli.acls.formats import as_commands, as_json
from isotherm.cli.acls.permissions import Acl, Installation, NamesError, Pattern, required_acls
from isotherm.cli.acls.plan import binding_of, plan, text_of
from isotherm.cli.acls.required import required_acls_of
from isotherm.cli.settings import AclSettings
from isotherm.schemas import Topic
from isotherm.schemas.access import AccessError, Operation, Resource, parse_access

TOPIC = replace(isotherm.schemas.topic("thermostat.data"), name="readings")
CONTROL = replace(TOPIC, name="isotherm.control")
NOBODY = replace(TOPIC, name="nobodys", writers=(), readers=())
ACCESS = """
services:
  mqtt-proxy: {}
  coap-ingest:
    topics:
    - {name: '{connector}.dead-letters', may: [create, write], why: w}
  aggregator: {}
  alerts:
    topics:
    - {name: alerts.dead-letters, may: [write], why: w}
    groups:
    - {prefix: isotherm-alerts, may: [read], why: w}
  persisters:
    groups:
    - {name: 'connect-{connector}', may: [read], why: w}
    - {name: 'workers-{worker_group}', may: [read], why: w}
  console:
    topics:
    - {all: declared, may: [read], why: w}
    - {all: dead-letters, may: [read], why: w}
    - {read_by: [alerts], may: [write], why: w}
    groups:
    - {name: 'connect-{connector}', of: persisters, may: [delete], why: w}
"""


def acls_of(
    service: str, *topics: Topic, **installation: Mapping[str, Sequence[str]]
) -> set[tuple[str, str, Operation]]:
    """The ACLs of a service: pattern and name together, as `name*` for a prefix."""
    found = required_acls(topics, [parse_access(ACCESS)], Installation(**installation), [service])  # type: ignore[arg-type]  # no principals
    assert {acl.principal for acl in found} <= {f"User:isotherm-{service}"}
    return {
        (acl.resource.name, f"{acl.name}{'*' if acl.pattern is Pattern.PREFIXED else ''}", acl.operation)
        for acl in found
    }


def test_the_topic_book_says_who_reads_and_who_writes() -> None:
    assert acls_of("mqtt-proxy", TOPIC, NOBODY) == {("TOPIC", "readings", Operation.WRITE)}
    assert acls_of("aggregator", TOPIC, NOBODY) == {("TOPIC", "readings", Operation.READ)}


def test_who_is_only_planned_as_a_reader_or_writer_gets_nothing() -> None:
    planned = replace(TOPIC, planned_readers=frozenset(("aggregator",)), planned_writers=frozenset(("mqtt-proxy",)))

    assert acls_of("mqtt-proxy", planned) == acls_of("aggregator", planned) == set()


def test_names_prefixes_and_selections_of_topics() -> None:
    assert acls_of("alerts") == {
        ("TOPIC", "alerts.dead-letters", Operation.WRITE),
        ("GROUP", "isotherm-alerts*", Operation.READ),
    }
    assert acls_of("console", TOPIC, CONTROL, NOBODY, connectors={"coap-ingest": ["garden"]}) == {
        ("TOPIC", "readings", Operation.READ),
        ("TOPIC", "readings", Operation.WRITE),
        ("TOPIC", "isotherm.control", Operation.READ),
        ("TOPIC", "nobodys", Operation.READ),
        ("TOPIC", "alerts.dead-letters", Operation.READ),
        ("TOPIC", "garden.dead-letters", Operation.READ),
    }


def test_placeholders_stand_for_the_names_of_the_service_or_of_the_one_that_is_named() -> None:
    names = {"connectors": {"persisters": ["a", "b"], "coap-ingest": ["c"]}, "worker_groups": {"persisters": ["g"]}}

    assert acls_of("persisters", **names) == {
        ("GROUP", "connect-a", Operation.READ),
        ("GROUP", "connect-b", Operation.READ),
        ("GROUP", "workers-g", Operation.READ),
    }
    assert acls_of("coap-ingest", **names) == {
        ("TOPIC", "c.dead-letters", Operation.CREATE),
        ("TOPIC", "c.dead-letters", Operation.WRITE),
    }
    assert {name for kind, name, _ in acls_of("console", **names) if kind == "GROUP"} == {"connect-a", "connect-b"}


def test_a_name_that_ends_with_an_asterisk_is_a_prefix() -> None:
    names = {"connectors": {"persisters": ["*"], "coap-ingest": ["garden-*"]}}

    assert acls_of("persisters", **names) == {("GROUP", "connect-*", Operation.READ)}
    assert {name for _, name, _ in acls_of("coap-ingest", **names)} == {"garden-*"}


def test_a_prefix_of_nothing_is_refused_for_topics() -> None:
    with pytest.raises(NamesError, match="would stand for every topic"):
        acls_of("coap-ingest", connectors={"coap-ingest": ["*"]})


def test_principals_are_those_of_the_installation() -> None:
    found = required_acls([TOPIC], [parse_access(ACCESS)], Installation({"mqtt-proxy": "User:CN=door"}))

    assert {acl.principal for acl in found} == {
        "User:CN=door",
        "User:isotherm-aggregator",
        "User:isotherm-alerts",
        "User:isotherm-console",
        "User:isotherm-coap-ingest",
        "User:isotherm-persisters",
    }


def test_services_with_one_principal_come_together() -> None:
    """Otherwise --prune for one of them would delete what the other needs."""
    shared = Installation({"mqtt-proxy": "User:one", "aggregator": "User:one"})

    found = required_acls([TOPIC], [parse_access(ACCESS)], shared, ["mqtt-proxy"])

    assert {(acl.principal, acl.operation) for acl in found} == {
        ("User:one", Operation.WRITE),
        ("User:one", Operation.READ),
    }


def test_a_second_file_adds_permissions_to_a_service(tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    more.write_text("services: {alerts: {topics: [{name: mine, may: [read], why: Ours.}]}}")
    ours = Acl("User:isotherm-alerts", Resource.TOPIC, Pattern.LITERAL, "mine", Operation.READ)

    with_it, without = (required_acls_of(AclSettings(file=file), ["alerts"]) for file in (more, None))

    assert with_it.keys() - without.keys() == {ours}
    assert with_it[ours] == "Ours."


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"connectors": ["readings-sink"]}, "connectors: 'readings-sink' is not of the form service/name"),
        ({"worker_groups": ["persisters/"]}, "worker_groups: 'persisters/' is not of the form"),
        ({"connectors": ["persister/a"]}, "connectors: 'persister' is not one of aggregator, alerts"),
        ({"principals": {"mqtt": "User:a"}}, "principals: 'mqtt' is not one of"),
        ({"principals": {"mqtt-proxy": "mqtt"}}, "principals: 'mqtt' is not of the form User:name"),
        ({"principals": {"mqtt-proxy": "User:*"}}, "principals: 'User:.' is not of the form User:name"),
    ],
)
def test_wrong_names_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(NamesError, match=problem):
        required_acls_of(AclSettings.model_validate(settings))


def test_an_unknown_service_and_a_wrong_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NamesError, match="services: 'mqtt' is not one of"):
        required_acls_of(AclSettings(), ["mqtt"])
    more = tmp_path / "more.yaml"
    more.write_text("services: []")
    with pytest.raises(AccessError, match=f"{more}: services: no mapping"):
        required_acls_of(AclSettings(file=more))


READ = Acl("User:a", Resource.TOPIC, Pattern.LITERAL, "t", Operation.READ)
WRITE = READ._replace(operation=Operation.WRITE)


def changed(binding: AclBinding, **parts: object) -> AclBinding:
    """A copy with other parts."""
    names = ("restype", "name", "resource_pattern_type", "principal", "host", "operation", "permission_type")
    return AclBinding(*({name: getattr(binding, name) for name in names} | parts).values())


def test_what_is_missing_is_created_and_what_is_there_is_left() -> None:
    todo = plan([READ, WRITE], [binding_of(READ)], prune=False)

    assert (todo.create, todo.delete, todo.unchanged) == ((binding_of(WRITE),), (), 1)


def test_what_is_not_required_is_deleted_only_with_prune() -> None:
    surplus = (
        changed(binding_of(READ), host="10.0.0.1"),
        binding_of(READ._replace(name="old")),
        changed(binding_of(READ), restype=ResourceType.BROKER, name="kafka-cluster", operation=AclOperation.ALTER),
    )
    existing = [binding_of(READ), *surplus]

    assert plan([READ], existing, prune=False).undeclared == tuple(sorted(surplus))
    assert plan([READ], existing, prune=False).delete == ()
    assert plan([READ], existing, prune=True).delete == tuple(sorted(surplus))
    assert plan([READ], existing, prune=True).undeclared == ()


def test_a_denial_is_told_and_never_deleted() -> None:
    denial = changed(binding_of(READ), permission_type=AclPermissionType.DENY)

    todo = plan([READ], [binding_of(READ), denial], prune=True)

    assert (todo.create, todo.delete, todo.denials) == ((), (), (denial,))


NAMED = st.builds(
    Acl,
    st.sampled_from(["User:a", "User:b"]),
    st.sampled_from(Resource),
    st.sampled_from(Pattern),
    st.sampled_from(["x", "y"]),
    st.sampled_from(Operation),
)


@given(required=st.sets(NAMED), existing=st.sets(NAMED))
def test_after_a_pruning_plan_the_cluster_has_exactly_what_is_required(required: set[Acl], existing: set[Acl]) -> None:
    before = {binding_of(acl) for acl in existing}

    todo = plan(required, before, prune=True)

    after = (before | set(todo.create)) - set(todo.delete)
    assert after == {binding_of(acl) for acl in required}
    again = plan(required, after, prune=True)
    assert (again.create, again.delete, again.unchanged) == ((), (), len(required))


def test_a_binding_is_named_with_all_that_is_unusual() -> None:
    prefixed = changed(binding_of(READ), resource_pattern_type=ResourcePatternType.PREFIXED, host="10.0.0.1")
    denied = changed(binding_of(READ), permission_type=AclPermissionType.DENY)

    assert text_of(binding_of(READ)) == "User:a read topic t"
    assert text_of(prefixed) == "User:a read topic t* from 10.0.0.1"
    assert text_of(denied) == "User:a deny read topic t"


def test_calls_of_kafkas_tool_hold_the_operations_of_one_resource_and_quote_names() -> None:
    acls = [
        READ._replace(principal="User:CN=a, O=b"),
        READ._replace(principal="User:CN=a, O=b", operation=Operation.ALTER_CONFIGS),
        Acl("User:c", Resource.TRANSACTIONAL_ID, Pattern.PREFIXED, "id-", Operation.WRITE),
    ]

    lines = as_commands(dict.fromkeys(sorted(acls), ""), "kafka:9092", "admin.properties").splitlines()

    start = ["kafka-acls.sh", "--bootstrap-server", "kafka:9092", "--command-config", "admin.properties", "--add"]
    topic, prefixed = ["--topic", "t"], ["--resource-pattern-type", "prefixed"]
    operations = ["--operation", "AlterConfigs", "--operation", "Read"]
    transactions = ["--operation", "Write", "--transactional-id", "id-"]
    assert [shlex.split(line) for line in lines] == [
        [*start, "--allow-principal", "User:CN=a, O=b", *operations, *topic, "--resource-pattern-type", "literal"],
        [*start, "--allow-principal", "User:c", *transactions, *prefixed],
    ]


def test_json_has_kafkas_names_and_the_reason() -> None:
    assert json.loads(as_json({READ: "Because."})) == [
        {
            "principal": "User:a",
            "host": "*",
            "permission": "ALLOW",
            "operation": "READ",
            "resource_type": "TOPIC",
            "pattern_type": "LITERAL",
            "name": "t",
            "why": "Because.",
        }
    ]
