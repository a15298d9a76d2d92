"""A reading that was acknowledged to its client and that no reader of the topic finds."""

from __future__ import annotations

from isotherm.proofs.history.checking.collection import Collection
from isotherm.proofs.history.checking.run_facts import RunFacts
from isotherm.proofs.history.checking.verdict import Anomaly, Report


def judge(collection: Collection, facts: RunFacts, report: Report) -> None:
    """Look for each acknowledged reading of QoS 1 and 2 in the topics, read_committed, and in the dead letters."""
    readings = collection.settings.holding("readings")
    due = collection.acknowledgements
    if due and report.cannot(*(reason for topic in readings for reason in facts.unread(topic))):
        return
    for via in {publish.via for publish in collection.publishes.values()} - facts.clients_ended:
        report.cannot(f"the clients of {via} may have been told more than the history has")
    unsourced = [letter for letter in facts.dead_letters if letter.origin is None]
    refused = {letter.id for letter in unsourced}
    for identity, (line, _) in due.items():
        publish = collection.publishes.get(identity)
        if publish is None:
            report.cannot(f"line {line} acknowledges a reading that the history does not have as published")
            continue
        if publish.qos == 0:
            continue
        report.compared()
        found = [topic for topic in readings if (one := collection.topics[topic].get(identity)) and one.committed]
        missing = set(publish.topics).difference(found) if publish.topics else not found
        if not missing or identity in refused:
            continue
        if None in refused:
            report.cannot("an acknowledged reading is missing, but there are dead letters whose readings are not known")
        else:
            where = f"in {', '.join(sorted(missing))}" if isinstance(missing, set) else "in no topic"
            report.convict(f"acknowledged at QoS {publish.qos}, but not committed {where}", publish.line, line)


ANOMALY = Anomaly("lost-write", "MQTT to Kafka, CoAP POST to Kafka: acknowledged is stored", of_keys=judge)
