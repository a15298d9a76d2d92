"""The plan of `isotherm acls apply`: compares the required ACLs with the cluster's. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from isotherm.cli.acls.permissions import Acl

ANY_HOST = "*"


@dataclass(frozen=True)
class AclPlan:
    """What has to be done; each list is sorted."""

    create: tuple[AclBinding, ...]
    delete: tuple[AclBinding, ...]
    """Only with `prune`."""
    undeclared: tuple[AclBinding, ...]
    """What allows one of the principals something that is not required, and stays."""
    denials: tuple[AclBinding, ...]
    """What denies one of the principals something. It wins over what is allowed, and always stays."""
    unchanged: int


def binding_of(acl: Acl) -> AclBinding:
    """Return an ACL in the client's words."""
    return AclBinding(
        ResourceType[acl.resource.name],
        acl.name,
        ResourcePatternType[acl.pattern.name],
        acl.principal,
        ANY_HOST,
        AclOperation[acl.operation.name],
        AclPermissionType.ALLOW,
    )


def plan(required: Collection[Acl], existing: Collection[AclBinding], *, prune: bool) -> AclPlan:
    """Compare the required ACLs with those that the cluster has for their principals."""
    wanted = {binding_of(acl) for acl in required}
    found = set(existing)
    denials = {one for one in found if one.permission_type is AclPermissionType.DENY}
    surplus = found - denials - wanted
    return AclPlan(
        tuple(sorted(wanted - found)),
        tuple(sorted(surplus)) if prune else (),
        () if prune else tuple(sorted(surplus)),
        tuple(sorted(denials)),
        len(wanted & found),
    )


def text_of(binding: AclBinding) -> str:
    """Return one line that names all of a binding."""
    pattern = "" if binding.resource_pattern_type is ResourcePatternType.LITERAL else "*"
    host = "" if binding.host == ANY_HOST else f" from {binding.host}"
    # A binding makes enumerations of these two, whatever it is given; its annotations do not say so.
    resource = "cluster" if binding.restype is ResourceType.BROKER else ResourceType(binding.restype).name.lower()
    operation = AclOperation(binding.operation).name.lower()
    denied = "deny " if binding.permission_type is AclPermissionType.DENY else ""
    return f"{binding.principal} {denied}{operation} {resource} {binding.name}{pattern}{host}"
