"""Why a publish is invalid, and with which reason code of MQTT 5 it is refused."""

from __future__ import annotations

from isotherm.mqtt_proxy.codec.reasons import Reason


class InvalidPublishError(Exception):
    """A publish cannot become readings.

    `reason` is the label of the metrics, `stage` Kafka Connect's name of the step that failed.
    """

    def __init__(self, reason: str, detail: str, stage: str = "VALUE_CONVERTER") -> None:
        super().__init__(detail)
        self.reason = reason
        self.stage = stage


_REASONS = {
    "no route": Reason.TOPIC_NAME_INVALID,
    "no topic": Reason.TOPIC_NAME_INVALID,
    "topic too long": Reason.TOPIC_NAME_INVALID,
    "properties": Reason.QUOTA_EXCEEDED,
    "identity": Reason.NOT_AUTHORIZED,
    "refused": Reason.IMPLEMENTATION_SPECIFIC_ERROR,
}


def refusal_reason(reason: str) -> Reason:
    """Return the reason code with which an MQTT 5 client is refused a publish that is invalid for `reason`."""
    return _REASONS.get(reason, Reason.PAYLOAD_FORMAT_INVALID)
