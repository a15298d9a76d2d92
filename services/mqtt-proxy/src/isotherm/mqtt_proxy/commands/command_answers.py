"""The answers of devices to commands: a publish to the response topic becomes the record of a step."""

from __future__ import annotations

from collections.abc import Sequence

from isotherm.connector.commands.records import ANSWERED, STEPS
from isotherm.connector.commands.steps import StepWriter
from isotherm.mqtt_proxy.access.authentication import AccessControl
from isotherm.mqtt_proxy.codec.packets import Publish
from isotherm.mqtt_proxy.codec.properties import Property
from isotherm.mqtt_proxy.commands.command_topics import CommandTopics
from isotherm.mqtt_proxy.ingest.producer_record import ProducerRecord
from isotherm.mqtt_proxy.ingest.refusals import InvalidPublishError


class CommandAnswers:
    """The route of answers: `ingest.answer_route.AnswerRoute`.

    The device is the one that the topic names. Where rules of an ACL file say who may publish, they have decided
    before. Otherwise a client answers for itself only.
    """

    def __init__(self, topics: CommandTopics, steps: StepWriter, access: AccessControl) -> None:
        self._topics, self._steps, self._access = topics, steps, access

    def takes(self, topic: str) -> bool:
        """Return whether a publish to `topic` is an answer."""
        return self._topics.answered(topic) is not None

    def may_take(self, levels: Sequence[str], any_level: int) -> bool:
        """Return whether a topic with these levels, and any text in the level `any_level`, may be that of an answer."""
        return self._topics.may_be_answers(levels, any_level)

    def record(self, publish: Publish, *, client_id: str, username: str | None) -> ProducerRecord | None:
        """Return the record of an answer; None for another publish. Raises InvalidPublishError."""
        answered = self._topics.answered(publish.topic)
        if answered is None:
            return None
        device_id, command_id = answered
        if self._access.acl is None and not self._access.may_act_for(device_id, client_id=client_id, username=username):
            detail = f"the answer is that of the device {device_id[:100]!r}, which the client is not"
            raise InvalidPublishError("identity", detail, "TRANSFORMATION")
        step = self._steps.step(
            device_id,
            command_id,
            ANSWERED,
            publish.qos,
            answer=publish.payload,
            answer_content_type=publish.properties.get(Property.CONTENT_TYPE),
        )
        return ProducerRecord(STEPS, device_id, self._steps.encoded(step), [])
