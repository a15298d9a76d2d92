"""MQTT 5 reason codes and MQTT 3.1.1 CONNACK return codes that a server for publishers uses."""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Reason codes of MQTT 5 (section 2.4)."""

    SUCCESS = 0x00
    DISCONNECT_WITH_WILL = 0x04
    NO_SUBSCRIPTION_EXISTED = 0x11
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    USE_ANOTHER_SERVER = 0x9C
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F

    @property
    def words(self) -> str:
        """The name as words, for log lines and metric labels."""
        return self.name.lower().replace("_", " ")


_RETURN_CODES = {
    Reason.UNSUPPORTED_PROTOCOL_VERSION: 1,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: 2,
    Reason.SERVER_UNAVAILABLE: 3,
    Reason.SERVER_BUSY: 3,
    Reason.SERVER_SHUTTING_DOWN: 3,
    Reason.QUOTA_EXCEEDED: 3,
    Reason.CONNECTION_RATE_EXCEEDED: 3,
    Reason.BAD_USER_NAME_OR_PASSWORD: 4,
    Reason.NOT_AUTHORIZED: 5,
}


def _codes(*codes: int) -> frozenset[int]:
    return frozenset(codes)


PUBLISH_ANSWERS = _codes(0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
"""Reason codes that a PUBACK or PUBREC may carry (tables 3-4 and 3-5)."""

RELEASE_ANSWERS = _codes(0x00, 0x92)
"""Reason codes that a PUBREL or PUBCOMP may carry (tables 3-6 and 3-7)."""

CLIENT_DISCONNECTS = _codes(0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99)
"""Reason codes that a client may disconnect with (table 3-10)."""


def return_code(reason: Reason) -> int | None:
    """Return the CONNACK return code of MQTT 3.1.1 (section 3.2.2.3) for `reason`; None when there is none."""
    return _RETURN_CODES.get(reason)
