"""Which of the resources that a server lists are observed. A pure function of the link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from isotherm.coap_ingest.coap.link_format import Link


@dataclass(frozen=True, slots=True)
class LinkFilter:
    """The properties that a discovered resource must have.

    An empty tuple allows every value. An allowed value that ends with `*` is a prefix (RFC 6690 section 4.1).
    """

    types: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    observable_only: bool = True

    def accepts(self, link: Link) -> bool:
        """Return whether `link` has one of the types and one of the interfaces, and is observable where it must be."""
        if self.observable_only and not link.is_observable:
            return False
        return _has_one(link.types, self.types) and _has_one(link.interfaces, self.interfaces)


def _has_one(values: Iterable[str], allowed: tuple[str, ...]) -> bool:
    if not allowed:
        return True
    exact = {value for value in allowed if not value.endswith("*")}
    prefixes = tuple(value[:-1] for value in allowed if value.endswith("*"))
    return any(value in exact or (prefixes and value.startswith(prefixes)) for value in values)
