"""The name of a server among the MQTT proxies on one Kafka, and what is derived from it (ADR 0017). Pure.

Two servers with different names share nothing: neither a transactional id nor a session, though their sessions are in
one topic. A server without a name has the names and keys that all servers had before there were names.
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
        """What the server is called on the control topics."""
        return f"{SERVICE}-{self.name}" if self.name else SERVICE

    def transactional_id(self, ordinal: int) -> str:
        """The transactional id of one of the server's processes."""
        return f"isotherm-{self.connector}-{ordinal}"

    def witness_key(self, ordinal: int) -> str:
        """The key of the record by which a process learns how a transaction without a session ended (ADR 0016)."""
        return f"{_SEPARATOR}{self.transactional_id(ordinal)}"

    def session_key(self, client_id: str) -> str:
        """The key of a client's session at this server."""
        return f"{self.name}{_SEPARATOR}{client_id}" if self.name else client_id

    def client_of(self, key: bytes) -> str | None:
        """The client whose session a key names; None when it is not a session of this server."""
        name, separator, client_id = key.rpartition(b"\0")
        if (separator and not name) or name != self.name.encode("utf-8"):
            return None
        return client_id.decode("utf-8")
