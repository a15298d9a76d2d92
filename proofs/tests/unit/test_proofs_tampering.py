"""Which findings name which faults."""

from __future__ import annotations

from typing import Any

from isotherm.proofs.tampering.tampered import Tampered, WindowKey, judge

AT_MS = 1_767_225_600_000
WINDOW = WindowKey("dev-1", "temperature", AT_MS)
CHANGED = Tampered("to-elasticsearch", WINDOW.identity, "its row is changed", frozenset(("different",)), AT_MS)
DROPPED = Tampered("mqtt-proxy", ("thermostat.data", "1", "41"), "dropped", frozenset(("missing",)), AT_MS)


def of_window(hop: str, kind: str, device: str = "dev-1") -> dict[str, Any]:
    identity = {"device_id": device, "metric": "temperature", "window_start": str(AT_MS), "window_end": str(AT_MS + 1)}
    return {"hop": hop, "kind": kind, "identity": identity, "found_at": AT_MS + 7_000}


def of_records(kind: str, offsets: str) -> dict[str, Any]:
    identity = {"topic": "thermostat.data", "partition": "1", "offset": offsets}
    return {"hop": "mqtt-proxy", "kind": kind, "identity": identity, "found_at": AT_MS + 9_000}


def test_a_fault_is_named_by_hop_identity_and_kind() -> None:
    verdict = judge([CHANGED, DROPPED], [of_window("to-elasticsearch", "different"), of_records("missing", "41")])
    assert verdict.delays_ms == {CHANGED: 7_000, DROPPED: 9_000}
    assert verdict.is_right


def test_another_kind_is_no_name() -> None:
    verdict = judge([CHANGED], [of_window("to-elasticsearch", "missing")])
    assert verdict.misnamed == [(CHANGED, "missing")]
    assert not verdict.is_right


def test_another_hop_or_identity_is_a_false_alarm() -> None:
    findings = [of_window("to-cassandra", "different"), of_window("to-elasticsearch", "different", "dev-2")]
    verdict = judge([CHANGED], findings)
    assert verdict.false_alarms == findings
    assert verdict.unnamed == [CHANGED]


def test_of_a_run_of_records_each_has_to_be_a_fault() -> None:
    finding = of_records("missing", "41,43-44")
    verdict = judge([DROPPED], [finding])
    assert verdict.delays_ms == {DROPPED: 9_000}
    assert verdict.false_alarms == [finding, finding]


def test_what_the_system_mended_need_not_be_named_but_may() -> None:
    assert judge([CHANGED], [], healed=[CHANGED]).is_right
    assert judge([CHANGED], [], healed=[CHANGED]).healed == [CHANGED]
    assert judge([CHANGED], [of_window("to-elasticsearch", "different")], healed=[CHANGED]).delays_ms
