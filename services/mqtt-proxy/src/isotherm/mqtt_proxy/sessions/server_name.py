"""The name of an MQTT server among those on one Kafka, and the ids and keys that derive from it (ADR 0017).

Two servers with different names share neither a transactional id nor a session, although one topic holds the sessions
of both. A server without a name uses the ids and keys that every server used before servers had names.
"""

from __future__ import annotations

from typing import NamedTuple

from isotherm.mqtt_proxy.settings import SERVICE

_SEPARATOR = "\0"
"""No client id can contain it (MQTT 3.1.1 and 5, section 1.5)."""


class ServerName(NamedTuple):
    """The setting `name`; empty for a server without one."""

    name: str

    @property
    def connector(self) -> str:
        """The server's connector name on the control topics."""
        return f"{SERVICE}-{self.name}" if self.name else SERVICE

    def transactional_id(self, ordinal: int) -> str:
        """Return the transactional id of one of the server's processes."""
        return f"isotherm-{self.connector}-{ordinal}"

    def witness_key(self, ordinal: int) -> str:
        """Return the key of a process' witness record, which ends transactions without a session (ADR 0016)."""
        return f"{_SEPARATOR}{self.transactional_id(ordinal)}"

    def session_key(self, client_id: str) -> str:
        """Return the key of a client's session at this server."""
        return f"{self.name}{_SEPARATOR}{client_id}" if self.name else client_id

    def client_of(self, key: bytes) -> str | None:
        """Return the client whose session a key names; None for a session of another server."""
        name, separator, client_id = key.rpartition(b"\0")
        if (separator and not name) or name != self.name.encode("utf-8"):
            return None
        return client_id.decode("utf-8")
