"""The page of ACLs: what each service's principal may do in Kafka, and why."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import isotherm.schemas
from isotherm.cli.acls.permissions import Installation, Pattern, merged, required_acls
from isotherm.reference import markdown
from isotherm.schemas.access import access

_INTRODUCTION = """What the principal of each service may do in Kafka, and nothing else: who reads and writes a topic
by the [topic book](topics.md), and what `schemas/access.yaml` adds. `isotherm acls` prints and applies it: [Kafka
ACLs](../how-to/kafka-acls.md). `*` at the end of a name stands for all names that begin so. `<connector>` and
`<worker group>` stand for the names in the settings `acls.connectors` and `acls.worker_groups`. Read, write and delete
include describe, and alter_configs includes describe_configs. An idempotent producer needs nothing more (Kafka 2.8 and
later), a transaction only its id."""


def text() -> str:
    """The page."""
    return markdown.page("Kafka ACLs", _INTRODUCTION, _lines())


def _lines() -> Iterator[str]:
    services = sorted(merged([access()]))
    installation = Installation(
        connectors={service: ["<connector>"] for service in services},
        worker_groups={service: ["<worker group>"] for service in services},
    )
    for service in services:
        acls = required_acls(isotherm.schemas.topics(), [access()], installation, [service])
        rows = []
        for (_, resource, pattern, name), same in groupby(acls, key=lambda acl: acl[:4]):
            entries = list(same)
            shown = f"{name}{'*' if pattern is Pattern.PREFIXED else ''}"
            reasons = dict.fromkeys(acls[acl] for acl in entries)
            kind = resource.name.lower().replace("_", " ")
            rows.append((kind, markdown.code(shown), ", ".join(acl.operation for acl in entries), " ".join(reasons)))
        yield from (f"## {service}", "", f"Principal: `{installation.principal(service)}` by default.", "")
        yield from (*markdown.table(("resource", "name", "may", "why"), rows), "")
