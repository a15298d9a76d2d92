"""Verifies that topics and checkpoint fit the settings, and finds where a new checkpoint begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isotherm.aggregator.checkpoint.folder import CheckpointFolder, fingerprint
from isotherm.aggregator.checkpoint.plans import Plans
from isotherm.aggregator.kafka.broker import Broker, BrokerError
from isotherm.aggregator.kafka.start_search import find_start
from isotherm.aggregator.offsets import Partition
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.watermark.boundary import Boundary
from isotherm.aggregator.watermark.start_position import StartPosition
from isotherm.servicekit import logs
from isotherm.servicekit.settings import SettingsError

_log = logs.logger(__name__)


def verify_topics(settings: AggregatorSettings, broker: Broker) -> dict[str, str]:
    """Verify that the topics exist; return the ids of those of the input. Raises BrokerError."""
    others = [settings.output_topic, settings.late_topic]
    if settings.group_attributes:
        others += [settings.grouped_topic, settings.devices_topic]
    others += [one.output_topic for one in settings.rollups]
    others += [one.grouped_topic for one in settings.rollups if one.grouped_topic and settings.group_attributes]
    broker.topic_ids(dict.fromkeys(others))
    topics = broker.topic_ids(broker.input_topics(settings))
    _verify_timestamps(settings, broker, list(topics))
    return topics


def _verify_timestamps(settings: AggregatorSettings, broker: Broker, topics: list[str]) -> None:
    """Raise BrokerError when a topic lacks append times, unless the settings allow that."""
    untimed = broker.topics_without_append_time(topics)
    if not untimed:
        return
    if settings.require_log_append_time:
        raise BrokerError(
            f"topic {', '.join(untimed)} has not message.timestamp.type=LogAppendTime, without which readings that "
            "an outage held back would be dropped unnoticed; run `isotherm apply`, or alter the topic "
            "(require_log_append_time=false accepts the producers' times)"
        )
    _log.warning(
        "these topics carry the producers' times: readings that an outage holds back are noticed only when the "
        "watermark drops them",
        topics=untimed,
    )


class CheckpointStart:
    """What is verified and stored before the queries of a checkpoint are started."""

    def __init__(self, settings: AggregatorSettings, broker: Broker, folder: CheckpointFolder) -> None:
        self._settings = settings
        self._broker = broker
        self._folder = folder

    def verify(self) -> None:
        """Verify that the checkpoint fits settings and topics.

        Raises BrokerError, CheckpointMismatchError and CheckpointSupersededError.
        """
        settings, broker = self._settings, self._broker
        topics, own = verify_topics(settings, broker), broker.topic_ids(settings.own_topics)
        self._folder.verify(fingerprint(settings, broker.cluster_id(), topics, own))
        broker.ensure_dead_letter_topic(settings.dead_letter_topic)

    def verify_boundary(self) -> None:
        """Store the boundary to a successor.

        Raises BrokerError, and SettingsError when it is too late to set or change the boundary.
        """
        settings, folder = self._settings, self._folder
        given = next((each for each in settings.boundaries if each.is_former), None)
        stored_ms, given_ms = folder.load_publish_until(), None if given is None else given.at_ms
        if stored_ms == given_ms:
            return
        newest_ms = self._broker.newest_timestamp_ms(self._broker.input_topics(settings)) or 0
        overlap_ms = settings.boundary_overlap_ms
        for at_ms in (stored_ms, given_ms):
            if at_ms is not None and not Boundary(at_ms, is_former=True, overlap_ms=overlap_ms).may_change(newest_ms):
                raise SettingsError(
                    [
                        f"publish_until: {settings.publish_until!r} is not allowed: {at_ms} (epoch ms) is less "
                        f"than boundary_overlap_ms ({overlap_ms}) after the newest record of the input ({newest_ms}), "
                        "so records have been judged without it, or by it"
                    ]
                )
        folder.save_publish_until(given_ms)

    def position(self, queries: Iterable[Plans]) -> StartPosition:
        """Return where the checkpoint begins; find and store it while no query has planned a batch.

        Raises BrokerError and SettingsError.
        """
        settings, folder = self._settings, self._folder
        topics, begun = self._broker.input_topics(settings), folder.load_start()
        if begun is not None:
            start, start_from = begun
            if any(query.newest() >= 0 for query in queries):
                return start
            # A former holder may be about to begin there, so the same start is taken again where that is possible.
            if start_from == settings.start_from and _is_kept(start, self._broker.log_bounds(topics)):
                return start
        start = find_start(settings, self._broker, topics)
        folder.save_start(start, settings.start_from)
        return start


def _is_kept(start: StartPosition, bounds: Mapping[Partition, tuple[int, int]]) -> bool:
    """Return whether the input still has every record from a start on."""
    return all(partition in bounds and bounds[partition][0] <= offset for partition, offset in start.offsets.items())
