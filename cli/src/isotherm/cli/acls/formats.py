"""The required ACLs as calls of Kafka's own tool, and as JSON. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from itertools import groupby

from isotherm.cli.acls.permissions import Acl
from isotherm.cli.acls.plan import ANY_HOST
from isotherm.schemas.access import Resource

_OPTIONS = {
    Resource.TOPIC: "--topic",
    Resource.GROUP: "--group",
    Resource.TRANSACTIONAL_ID: "--transactional-id",
}


def as_commands(acls: Mapping[Acl, str], bootstrap_servers: str, command_config: str | None = None) -> str:
    """Return one call of `kafka-acls.sh` for each principal and resource. `acls` is sorted.

    `command_config` is the file with which the tool logs in.
    """
    start = ["kafka-acls.sh", "--bootstrap-server", bootstrap_servers]
    start += ["--command-config", command_config] if command_config else []
    lines = []
    for (principal, resource, pattern, name), same in groupby(acls, key=lambda acl: acl[:4]):
        call = [*start, "--add", "--allow-principal", principal]
        for acl in same:
            call += ["--operation", "".join(part.capitalize() for part in acl.operation.split("_"))]
        call += [_OPTIONS[resource], name, "--resource-pattern-type", pattern.value]
        lines.append(f"{shlex.join(call)}\n")
    return "".join(lines)


def as_json(acls: Mapping[Acl, str]) -> str:
    """Return the ACLs as one JSON array, with Kafka's names and the reason of each."""
    records = [
        {
            "principal": acl.principal,
            "host": ANY_HOST,
            "permission": "ALLOW",
            "operation": acl.operation.name,
            "resource_type": acl.resource.name,
            "pattern_type": acl.pattern.name,
            "name": acl.name,
            "why": why,
        }
        for acl, why in acls.items()
    ]
    return f"{json.dumps(records, indent=1)}\n"
