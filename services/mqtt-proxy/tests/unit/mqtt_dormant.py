"""Sessions as they are after a start, for tests without a sessions topic."""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.mqtt_proxy.sessions.dormant import DormantSessions
from isotherm.mqtt_proxy.sessions.store import StoredState


def dormant(states: Mapping[str, StoredState], now_ms: int) -> DormantSessions:
    """The sessions after a start at `now_ms` with a sessions topic that holds `states`."""
    kept = {client_id: state.copy() for client_id, state in states.items()}
    made = DormantSessions(lambda value: kept[value.decode()].copy(), now_ms)
    made.take_over({client_id: client_id.encode() for client_id in kept}, lambda _state: True)
    return made
