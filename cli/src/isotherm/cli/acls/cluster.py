"""Reads and changes the ACLs of a cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported there, but not in its __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from isotherm.servicekit.kafka.errors import error_of

_TIMEOUT_S = 30.0
_EXPLANATIONS = {
    KafkaError.SECURITY_DISABLED: (
        "the brokers have no authorizer: set authorizer.class.name, or print the ACLs instead"
    ),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        "the login may not read or change ACLs: it needs Alter and Describe of the cluster"
    ),
}


class AclsUnavailableError(Exception):
    """The brokers have no ACLs, or the login may not read or change them."""


def existing_acls(admin: AdminClient, principals: Collection[str]) -> list[AclBinding]:
    """Return all ACLs of these principals. Raises AclsUnavailableError and KafkaException."""
    unnamed: Any = None  # the annotations of the filter know no absent name
    every = AclBindingFilter(
        ResourceType.ANY, unnamed, ResourcePatternType.ANY, unnamed, unnamed, AclOperation.ANY, AclPermissionType.ANY
    )
    with _explained():
        found: Iterable[AclBinding] = admin.describe_acls(every, request_timeout=_TIMEOUT_S).result()
    return [one for one in found if one.principal in principals]


def create(admin: AdminClient, bindings: Collection[AclBinding]) -> None:
    """Create ACLs; one that exists is left as it is. Raises AclsUnavailableError and KafkaException."""
    if bindings:
        _wait(admin.create_acls(list(bindings), request_timeout=_TIMEOUT_S).values())


def delete(admin: AdminClient, bindings: Collection[AclBinding]) -> None:
    """Delete exactly these ACLs. Raises AclsUnavailableError and KafkaException."""
    filters = [
        AclBindingFilter(
            one.restype,
            one.name,
            one.resource_pattern_type,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )
        for one in bindings
    ]
    if filters:
        _wait(admin.delete_acls(filters, request_timeout=_TIMEOUT_S).values())


def _wait(answers: Iterable[Future[object]]) -> None:
    with _explained():
        for answer in answers:
            answer.result()


@contextmanager
def _explained() -> Iterator[None]:
    """Raise AclsUnavailableError for what a user has to change first: Kafka's own texts do not say it."""
    try:
        yield
    except KafkaException as failure:
        error = error_of(failure)
        if error is not None and error.code() in _EXPLANATIONS:
            raise AclsUnavailableError(_EXPLANATIONS[error.code()]) from failure
        raise
