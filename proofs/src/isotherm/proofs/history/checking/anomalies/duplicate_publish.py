"""A publish at QoS 2 (or 0) that read_committed readers find twice."""

from __future__ import annotations

from isotherm.proofs.history.checking.collection import Collection
from isotherm.proofs.history.checking.run_facts import RunFacts
from isotherm.proofs.history.checking.verdict import Anomaly, Report
from isotherm.proofs.history.format import MQTT


def judge(collection: Collection, facts: RunFacts, report: Report) -> None:
    """Compare how often a reading is in a topic with how often it was published anew; QoS 1 may repeat."""
    for topic in collection.settings.holding("readings"):
        for identity, stored in collection.topics[topic].items():
            publish = collection.publishes.get(identity)
            if publish is None or publish.via != MQTT or publish.qos == 1:
                continue
            report.compared()
            if stored.committed > publish.times:
                what = f"published {publish.times} x at QoS {publish.qos}, {stored.committed} x in {topic}"
                report.convict(what, publish.line, stored.first[2], stored.line)


ANOMALY = Anomaly("duplicate-publish", "MQTT QoS 2 to Kafka: exactly once for a read_committed reader", of_keys=judge)
