"""The ACLs that an installation needs, by its settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import isotherm.schemas
from isotherm.cli.acls.permissions import Acl, Installation, NamesError, required_acls
from isotherm.cli.settings import AclSettings
from isotherm.schemas.access import AccessError, access, parse_access


def required_acls_of(settings: AclSettings, services: Sequence[str] = ()) -> dict[Acl, str]:
    """Return the ACLs of the services as `required_acls` does.

    Raises NamesError, AccessError for a file without the documented form, and OSError.
    """
    accesses = [access()]
    if settings.file is not None:
        try:
            accesses.append(parse_access(settings.file.read_text(encoding="utf-8")))
        except ValueError as error:
            raise AccessError(f"{settings.file}: {error}") from error
    installation = Installation(
        settings.principals,
        _by_service("connectors", settings.connectors),
        _by_service("worker_groups", settings.worker_groups),
    )
    return required_acls(isotherm.schemas.topics(), accesses, installation, services)


def _by_service(place: str, names: Sequence[str]) -> dict[str, list[str]]:
    """Sort names of the form `service/name` by service. Raises NamesError."""
    found = defaultdict(list)
    for text in names:
        service, separator, name = text.partition("/")
        if not separator or not name:
            raise NamesError(f"{place}: {text!r} is not of the form service/name, as persisters/readings-sink")
        found[service].append(name)
    return found
