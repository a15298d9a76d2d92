"""Connector files for the tests of the configuration, and their compilation."""

from __future__ import annotations

from isotherm import payloads
from isotherm.coap_ingest.coap.resource import Server
from isotherm.coap_ingest.connectors.plan import ConnectorPlan, compile_plan
from isotherm.connector.config.files import parse

DOCUMENT = """\
name = coap-source
connector.class = com.datamountaineer.streamreactor.connect.coap.source.CoapSourceConnector
max.tasks = 1
connect.coap.source.uri = coap://localhost:5633
connect.coap.kcql = INSERT INTO coap_sensor_topic SELECT * FROM sensors
"""
SERVER = Server("coap", "localhost", 5633)

LISTENING = DOCUMENT.replace(
    "connect.coap.source.uri = coap://localhost:5633", "connect.coap.listen = coap://127.0.0.1"
)


def planned(text: str, *, allow_anonymous: bool = False) -> ConnectorPlan:
    return compile_plan(
        parse(text),
        units={},
        limits=payloads.Limits(),
        dead_letter_topic="coap-ingest.dead-letters",
        allow_anonymous=allow_anonymous,
    )


def with_kcql(kcql: str) -> str:
    return DOCUMENT.replace("INSERT INTO coap_sensor_topic SELECT * FROM sensors", kcql)
