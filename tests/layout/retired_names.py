"""Names that the suite no longer uses, each with the field's term that replaced it.

A name is retired as the name of one thing and not in every sense: `Delivery` is retired in the MQTT server and free
elsewhere. `where` lists the folders in which an identifier is retired; empty means everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Retired:
    """One thing that has another name now."""

    now: str
    """The term that is used instead."""
    where: tuple[str, ...] = ()
    """Folders of the repository; empty for all."""
    identifiers: tuple[str, ...] = ()
    """Names in Python code; a leading underscore of the code's name does not count."""
    modules: tuple[str, ...] = ()
    """Names of Python files without `.py`."""
    prose: tuple[str, ...] = ()
    """Regular expressions for all texts (sources, documents, pages), compared without case."""


MQTT, COAP = "services/mqtt-proxy", "services/coap-ingest"
AGGREGATOR, ALERTS = "services/aggregator", "services/alerts"
PERSISTERS, CONSOLE, CLI, DEMO = "services/persisters", "services/console", "cli", "demo"
CONNECTOR, STACK, SIMULATORS = "libs/connector", "stack", "simulators"

RETIRED = (
    Retired(
        "dead-letter records, dead-letter queue",
        identifiers=("LetterBox", "Letters", "letter_box", "letter_boxes", "letter_topic", "letter_topics", "letters"),
        modules=("letters", "letter_topics", "letter_boxes", "boxes"),
        prose=(r"letter box(es)?\b",),
    ),
    Retired(
        "MQTT server, CoAP server, listener",
        identifiers=("FrontDoor", "FrontDoors", "front_door", "front_doors", "door", "doors"),
        modules=("front_door", "front_doors", "door", "doors"),
        prose=(r"\bfront[ -]doors?\b", r"\b(MQTT|CoAP) doors?\b", r"\bthe doors\b"),
    ),
    Retired(
        "devices; connectors; cluster",
        identifiers=("Fleet", "MqttFleet", "fleet"),
        modules=("fleet",),
        prose=(r"\bfleets?\b",),
    ),
    Retired(
        "partition buffers, in-flight batch, failed record",
        (PERSISTERS,),
        identifiers=("Lane", "Lanes", "lane", "lanes", "Work", "Refusal", "Rejected"),
        modules=("lanes", "lane"),
    ),
    Retired("watchdog; auth middleware", (STACK, CONSOLE, MQTT), identifiers=("Guard", "guard"), modules=("guard",)),
    Retired(
        "reconciliation report",
        (CONSOLE, CLI, DEMO),
        identifiers=("Balance", "BalanceSheet", "balance", "balance_of", "balance_sheet"),
        modules=("balance", "balance_sheet"),
        prose=(r"\bbalance sheets?\b",),
    ),
    Retired(
        "desired state, reconcile, task launch, report",
        identifiers=(
            "Fate",
            "Handover",
            "Wanted",
            "Wishes",
            "handover",
            "obey",
            "obeys",
            "obeying",
            "run_as_wanted",
            "run_as_wanted_async",
            "run_handed_over",
            "wanted_of",
            "wishes",
        ),
        modules=("handover", "obeying", "wanted", "wishes"),
        prose=(r"\bhand-?overs?\b", r"\bhanded-over\b", r"\bobeying\b"),
    ),
    Retired("report_to_worker", (CONNECTOR, "services"), identifiers=("tell",)),
    Retired("TopicPartition; DeviceRef; WorkerSlot", identifiers=("Place", "Places"), modules=("place", "places")),
    Retired(
        "last heartbeat, reconciled, threshold, invalid payload, sequence",
        (CONSOLE, CLI, ALERTS, MQTT, COAP),
        identifiers=("Bound", "Heard", "Holds", "Number", "misfit", "misfits"),
        modules=("bound", "heard", "holds", "misfits", "number"),
        prose=(r"\bmisfits?\b",),
    ),
    Retired(
        "fast path, try_project_batch, fallback errors, fastavro's Python reader",
        (PERSISTERS, "libs/servicekit", "libs/flatavro"),
        identifiers=("UNUSUAL", "patient", "usual"),
        modules=("whole", "usual", "patient"),
        prose=(r"\bwhole\.py\b",),
    ),
    Retired(
        "above the high mark, read_pause_ms, background job, expire, index series",
        (PERSISTERS,),
        identifiers=("CONTENT_MS", "Family", "is_sated", "retire", "upkeep"),
        modules=("upkeep", "families"),
        prose=(r"\bupkeep\b", r"\bsated\b"),
    ),
    Retired(
        "WatermarkAdvancer, reject_reason, WriterSchemaCache, max_publish_delay_ms",
        (AGGREGATOR,),
        identifiers=("SchemaBook", "Ticking", "read_slack_ms", "verdict"),
        modules=("schema_book", "ticking"),
        prose=(r"(?<!_PUBLISH_DELAY = \")\bread_slack_ms\b",),  # stored fingerprints and older revisions have the key
    ),
    Retired(
        "advance_when_idle, QueryRunner, StreamRunner",
        (AGGREGATOR, ALERTS),
        identifiers=("Operation", "idle_clock", "idle_flush"),
        modules=("operation", "idle"),
        prose=(r"\bidle_(clock|flush)\b",),
    ),
    Retired(
        "DeviceStateStore, DeviceRuleState, RuleState, BufferedReading, needs_rewrite, advance_clock, dead_letter",
        (ALERTS,),
        identifiers=("DeviceMemory", "Held", "Watch", "buried", "bury", "hear", "overtaken", "told_ms"),
        modules=("memory", "watch", "held"),
        prose=(r"\b(bury|buried)\b",),
    ),
    Retired(
        "DesiredState, AckQueue, PendingAck, Qos2Receiver, PendingPublish",
        (MQTT,),
        identifiers=("Answer", "Answers", "Delivery", "ExactlyOnce"),
        modules=("answers", "exactly_once"),
    ),
    Retired(
        "InflightGate.acquire, release, park; SessionWrite, OrderedSource, TransactionBatcher",
        (MQTT,),
        identifiers=("Grouping", "Sender", "Unit", "took", "finished", "wait_for_room"),
        modules=("grouping",),
    ),
    Retired(
        "WorkerProcess, SessionMigration, ResourceObserver, BoundedQueue, RestartDetector, Registration",
        (MQTT, COAP),
        identifiers=("Endpoint", "Exchange", "Intake", "Keeper", "Member"),
        modules=("intake", "keeper", "known", "showing"),
        prose=(r"\bintakes?\b", r"\bkeepers?\b"),
    ),
    Retired(
        "IngestContext, QueuedNotification, PublishPermissions, LoginThrottle, TopicEncoders, MessageIdCache",
        (MQTT, COAP),
        identifiers=("Arrival", "Arrived", "Attempts", "Catalogue", "Remembered", "Rights"),
        modules=("arrival", "attempts", "catalogue", "remembered", "rights"),
    ),
    Retired(
        "GroupAdmin.committed_offsets, because librdkafka's call ends the process when a coordinator moves (ADR 137)",
        identifiers=("list_consumer_group_offsets",),
    ),
)
