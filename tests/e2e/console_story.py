"""The life of one connector in a browser, from its creation to its deletion, checked in the topics and stores."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from types import TracebackType
from typing import Any, Self, cast

import httpx
from cassandra.cluster import Cluster
from cassandra.query import dict_factory
from confluent_kafka import Message
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # not in its __all__
from console_browser import Browser
from playwright.sync_api import Locator, expect

from isotherm.cli import records
from isotherm.cli.records import UnknownTopicError
from isotherm.demo import workers
from isotherm.demo.system import SINK_GROUP, System
from isotherm.servicekit.kafka import clients

NAME = "greenhouse-to-cassandra"
TOPIC, KEYSPACE, TABLE = "greenhouse", "greenhouse", "readings"
QUEUE = f"{NAME}.dead-letters"
CLASS = "isotherm.persisters.ScyllaSink"
WITHIN_S = 120.0

CUT_OFF = b'{"id": "gh-2", "at": 1767225'
"""A record of a gateway that lost its power: it cannot be decoded."""
UNKNOWN_FIELD = b'{"id": "gh-3", "at": 1767225602000, "t": 19.5, "soil": "dry"}'
"""A new device sends more fields than the table has columns."""

SELECTED, NAMED = f"INSERT INTO {TABLE} SELECT * FROM {TOPIC}", f"INSERT INTO {TABLE} SELECT id, at, t FROM {TOPIC}"
MISSPELT = SELECTED.replace("FROM", "FORM")
TOLERANT = "errors.tolerance=all\nerrors.deadletterqueue.enable=true\n"


def configuration(kcql: str, more: str = "") -> str:
    """The connector's properties."""
    return (
        f"connector.class={CLASS}\ntasks.max=1\ntopics={TOPIC}\nworker.group={SINK_GROUP}\n"
        "connect.cassandra.contact.points=${env:CASSANDRA_HOST}\nconnect.cassandra.port=${env:CASSANDRA_PORT}\n"
        f"connect.cassandra.key.space={KEYSPACE}\nconnect.cassandra.kcql={kcql}\n{more}"
    )


def reading(device: str, second: int, celsius: float) -> bytes:
    """A reading as the greenhouse's gateway writes it."""
    return json.dumps({"id": device, "at": 1_767_225_600_000 + second * 1_000, "t": celsius}).encode()


class Greenhouse:
    """Both ends of the connector: a topic of its own in the demo's Kafka, and a table in the demo's Cassandra."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._at_end = ExitStack()

    def __enter__(self) -> Self:
        system = self._system
        admin = clients.admin(system.kafka, "greenhouse")
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(WITHIN_S)
        self._producer = clients.producer(system.kafka, "greenhouse")
        cluster = Cluster(["127.0.0.1"], port=system.stack.cassandra.port, protocol_version=4)
        self._cql = self._at_end.enter_context(cluster).connect()
        self._cql.default_timeout = WITHIN_S
        self._cql.row_factory = dict_factory
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        self._cql.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {replication}")
        self._cql.execute(f"CREATE TABLE {KEYSPACE}.{TABLE} (id text, at timestamp, t double, PRIMARY KEY (id, at))")
        console = system.services[workers.Console.name].address
        self._http = self._at_end.enter_context(httpx.Client(base_url=console, timeout=WITHIN_S))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._at_end.close()

    def measure(self, *values: bytes) -> None:
        """Write records; Kafka has them on return."""
        for value in values:
            self._producer.produce(TOPIC, key=b"gateway", value=value)
        assert self._producer.flush(WITHIN_S) == 0

    def poison(self, *values: bytes) -> None:
        """Write records that nobody can store; the report is told to expect their dead letters."""
        self._system.expected_dead_letters[QUEUE] = len(values)
        self.measure(*values)

    def rows(self) -> dict[str, float]:
        """Temperature by device, as Cassandra has it."""
        return {row["id"]: row["t"] for row in self._cql.execute(f"SELECT id, t FROM {KEYSPACE}.{TABLE}")}

    def await_rows(self, expected: dict[str, float]) -> None:
        """Wait until the table holds exactly this."""
        until(lambda: self.rows() == expected, lambda: f"{expected}; it holds {self.rows()}\n{self.log()}")

    def dead_letter_records(self) -> list[tuple[bytes | None, str]]:
        """The records of the dead-letter queue: the original bytes, and the stage at which they failed."""
        with closing(records.read(self._system.kafka, QUEUE)) as found, suppress(UnknownTopicError):
            return [(one.value(), _header(one, "__connect.errors.stage")) for one in found]
        return []

    def status(self) -> tuple[int, Any]:
        """What Kafka Connect's REST API says of the connector."""
        answer = self._http.get(f"/connectors/{NAME}/status")
        return answer.status_code, answer.json()

    def log(self) -> str:
        """The worker's last words."""
        return self._system.services[workers.SinkWorkers.name].log_tail()


def _header(message: Message, name: str) -> str:
    headers = cast("list[tuple[str, bytes]]", message.headers() or [])
    return dict(headers)[name].decode()


def until(condition: Callable[[], bool], missing: Callable[[], str]) -> None:
    """Ask until it is so."""
    deadline, pause = time.monotonic() + WITHIN_S, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {WITHIN_S:.0f} s: {missing()}"
        pause.wait(0.2)


def play(console: Browser, greenhouse: Greenhouse) -> None:
    """The whole life, each step checked in the browser, in the topic and in the table."""
    _create(console)
    greenhouse.measure(reading("gh-1", 1, 21.5))
    greenhouse.await_rows({"gh-1": 21.5})
    greenhouse.poison(CUT_OFF, UNKNOWN_FIELD)
    _see_the_exception(console)
    _edit(console, configuration(SELECTED, TOLERANT))
    _see_the_dead_letter_records(console, greenhouse)
    _mend_while_paused(console, greenhouse)
    _handle_the_dead_letter_records(console, greenhouse)
    _delete(console, greenhouse)


def _create(console: Browser) -> None:
    page = console.page
    console.open("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Flow")
    console.press("link", "New connector")
    page.get_by_label("Begin with a class").select_option(CLASS)
    page.get_by_role("button", name="Fill in its keys").click()
    expect(page.get_by_label("Configuration, as properties")).to_have_value(re.compile(f"connector.class={CLASS}"))
    page.get_by_label("Name", exact=True).fill(NAME)
    page.get_by_label("Configuration, as properties").fill(configuration(MISSPELT))
    expect(page.locator("#checked .problem")).to_have_count(1)
    expect(page.locator("#checked .problem")).to_contain_text(re.compile(r"FORM greenhouse.*\n *\^"))
    console.examine()
    console.picture("editor")
    page.get_by_label("Configuration, as properties").fill(configuration(SELECTED))
    expect(page.locator("#checked")).to_contain_text("No problems found.")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(NAME)
    _expect_state(console, "RUNNING", "RUNNING")


def _see_the_exception(console: Browser) -> None:
    page = console.page
    _expect_state(console, "RUNNING", "FAILED")
    trace = page.locator("pre.trace")
    expect(page.get_by_role("heading", name="Last exception of task 0")).to_be_visible()
    expect(trace).to_contain_text("Traceback (most recent call last)")
    console.examine()
    console.picture("connector-with-exception")
    console.press("link", "Isotherm")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=NAME, exact=True))
    expect(row.locator(".state.failed")).to_have_count(1)
    console.examine()
    console.picture("flow")
    console.press("link", NAME)


def _see_the_dead_letter_records(console: Browser, greenhouse: Greenhouse) -> None:
    page = console.page
    _expect_state(console, "RUNNING", "RUNNING")
    poison = [(CUT_OFF, "VALUE_CONVERTER"), (UNKNOWN_FIELD, "TASK_PUT")]
    until(
        lambda: greenhouse.dead_letter_records() == poison,
        lambda: f"{poison}; there are {greenhouse.dead_letter_records()}",
    )
    assert greenhouse.rows() == {"gh-1": 21.5}
    console.visit_every_kind_of_page()
    console.open(f"/ui/connectors/{NAME}")
    expect(page.locator("#reconciliation tfoot").get_by_role("cell")).to_have_text(["3", "1", "2", "0", "0", "yes"])
    console.press("link", "Dead-letter queue", within=_actions(console))
    expect(page.get_by_role("checkbox")).to_have_count(len(poison))
    expect(page.get_by_role("row").filter(has_text="soil")).to_contain_text("NotAColumnError")
    console.examine()
    console.picture("dead-letter-queue")
    console.press("link", "0/1")
    expect(page.locator("pre.trace")).to_contain_text("NotAColumnError")
    expect(page.get_by_text('"soil": "dry"')).to_be_visible()
    console.examine()
    console.picture("dead-letter-record")


def _edit(console: Browser, text: str) -> None:
    page = console.page
    console.press("link", "Edit")
    page.get_by_label("Configuration, as properties").fill(text)
    expect(page.locator("#checked")).to_contain_text("No problems found.")
    console.examine()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(NAME)


def _mend_while_paused(console: Browser, greenhouse: Greenhouse) -> None:
    console.open(f"/ui/connectors/{NAME}")
    _confirm(console, "Pause")
    _expect_state(console, "PAUSED", "PAUSED")
    greenhouse.measure(reading("gh-4", 4, 22.5))
    _edit(console, configuration(NAMED, TOLERANT))
    assert greenhouse.rows() == {"gh-1": 21.5}
    _confirm(console, "Resume")
    _expect_state(console, "RUNNING", "RUNNING")
    greenhouse.await_rows({"gh-1": 21.5, "gh-4": 22.5})


def _handle_the_dead_letter_records(console: Browser, greenhouse: Greenhouse) -> None:
    page = console.page
    console.press("link", "Dead-letter queue", within=_actions(console))
    page.get_by_label("Choose record 0/1").press("Space")
    console.press("button", "Replay")
    expect(page.get_by_role("status")).to_have_text("1 replayed")
    expect(page.get_by_role("checkbox")).to_have_count(1)
    greenhouse.await_rows({"gh-1": 21.5, "gh-3": 19.5, "gh-4": 22.5})
    page.get_by_label("all that are open now").press("Space")
    console.press("button", "Discard")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Discard all open records of {QUEUE}?")
    console.examine()
    console.press("button", "Discard")
    expect(page.get_by_role("status")).to_have_text("1 discarded")
    expect(page.get_by_role("checkbox")).to_have_count(0)
    console.examine()
    assert len(greenhouse.dead_letter_records()) == 2, "a handled record stays in its topic"


def _delete(console: Browser, greenhouse: Greenhouse) -> None:
    page = console.page
    console.open(f"/ui/connectors/{NAME}")
    _confirm(console, "Delete")
    expect(page.get_by_role("heading", level=1)).to_have_text("Flow")
    expect(page.get_by_role("link", name=NAME, exact=True)).to_have_count(0)
    assert greenhouse.status()[0] == httpx.codes.NOT_FOUND
    assert len(greenhouse.rows()) == 3, "what it wrote stays"


def _confirm(console: Browser, action: str) -> None:
    """Choose an action of the connector and confirm it, with the keyboard alone."""
    console.press("link", action)
    expect(console.page.get_by_role("heading", level=1)).to_have_text(f"{action} {NAME}?")
    console.examine()
    console.press("button", action)


def _actions(console: Browser) -> Locator:
    return console.page.get_by_role("navigation", name="Actions")


def _expect_state(console: Browser, connector: str, task: str) -> None:
    """The page refreshes itself until it shows these states."""
    expect(console.page.locator("#state > p .state")).to_have_text(connector)
    expect(console.page.locator("#state tbody .state")).to_have_text(task)
