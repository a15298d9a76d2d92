import json

import pytest

from isotherm.cli.devices import BadDeviceError, parse


def test_fields_that_are_left_out_get_their_defaults() -> None:
    assert parse('{"device_id": "dev-1", "room": "kitchen"}') == {
        "device_id": "dev-1",
        "home": None,
        "room": "kitchen",
        "region": None,
        "model": None,
        "thresholds": {},
        "attributes": {},
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[1]", "expected an object, got list"),
        ("{}", "device_id must be a non-empty text, got None"),
        ('{"device_id": ""}', "device_id must be a non-empty text, got ''"),
        ('{"device_id": 7}', "device_id must be a non-empty text, got 7"),
        ('{"device_id": "\\ud800"}', "device_id has half of a surrogate pair"),
        ('{"device_id": "d", "thresholds": {"hot.above": NaN}}', "NaN is no JSON number"),
        ('{"device_id": ' + "[" * 5_000, "nested too deeply"),
        ('{"device_id": 1' + "0" * 5_000 + "}", "4300 digits"),
        ('{"device_id": "d", "rom": "x"}', "unknown field rom; a device has device_id, home, room"),
    ],
)
def test_refused_line_names_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(BadDeviceError) as refused:
        parse(text)

    assert reason in str(refused.value)


def test_thresholds_are_kept() -> None:
    device = {"device_id": "d", "thresholds": {"hot.above": 31.5}}

    assert parse(json.dumps(device))["thresholds"] == {"hot.above": 31.5}
