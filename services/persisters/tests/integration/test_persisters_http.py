"""The HTTP sink against a server that fails, stands still, answers late and lies."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from http_receiver import Handler, Receiver
from sink_world import TIMESTAMP_MS, Authority, Writing

from isotherm.persisters.api.ownership import OwnershipLostError
from isotherm.persisters.api.row import Batch
from isotherm.persisters.api.sink import SinkConfigError, Unavailable

pytestmark = pytest.mark.integration

THING: Any = {
    "type": "record",
    "name": "Thing",
    "isotherm.identity": ["id"],
    "fields": [{"name": "id", "type": "string"}, {"name": "level", "type": "int"}],
}
PLACED: Any = {**THING, "fields": [*THING["fields"], {"name": "place", "type": "string"}]}
ALL = "INSERT INTO things SELECT * FROM t"
IMPATIENT = {"write.timeout.ms": "300"}


_made: list[Writing] = []


@pytest.fixture(autouse=True)
def closed_sinks() -> Iterator[None]:
    yield
    while _made:
        _made.pop().sink.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with closing(Receiver()) as made:
        yield made


def made(schema: Any, **config: str) -> Writing:
    """A connector whose sink is closed at the end of the test."""
    _made.append(Writing("http", schema, "t", {"kcql": ALL, **config}))
    return _made[-1]


def writing(receiver: Receiver, kcql: str = ALL, schema: Any = THING, path: str = "/in", **config: str) -> Writing:
    url = f"http://127.0.0.1:{receiver.port}{path}"
    given = {key.replace("__", "."): value for key, value in config.items()}
    return made(schema, url=url, kcql=kcql, **given)


def things(into: Writing, *levels: int) -> list[Any]:
    return [into.prepare({"id": f"d{number}", "level": level}) for number, level in enumerate(levels)]


@pytest.mark.parametrize(
    ("format_", "type_", "bodies"),
    [
        ("JSON_ARRAY", "application/json", [b'[{"id":"d0","level":1},{"id":"d1","level":2}]']),
        ("NDJSON", "application/x-ndjson", [b'{"id":"d0","level":1}\n{"id":"d1","level":2}\n']),
        ("RECORD", "application/json", [b'{"id":"d0","level":1}', b'{"id":"d1","level":2}']),
    ],
)
def test_formats_headers_and_one_connection(receiver: Receiver, format_: str, type_: str, bodies: list[bytes]) -> None:
    into = writing(
        receiver,
        request__format=format_,
        headers="X-Site: north | X-Trace: a b",
        secret__headers="X-Key: hidden",
        bearer__token="abc",
    )
    into.sink.open()
    assert into.write(*things(into, 1, 2)) == []
    assert [one.body for one in receiver.received] == bodies
    for one in receiver.received:
        assert (one.method, one.path, one.headers["Content-Type"]) == ("POST", "/in", type_)
        assert [one.headers[name] for name in ("X-Site", "X-Trace", "X-Key")] == ["north", "a b", "hidden"]
        assert one.headers["Authorization"] == "Bearer abc"
    assert len(receiver.connections) == 1, "the connection of open() serves all requests"


def test_a_template_around_the_rows_and_bodies_of_a_bounded_size(receiver: Receiver) -> None:
    into = writing(receiver, body__template='{"site":"n","rows":{{rows}}}', request__bytes="60")
    large = into.prepare({"id": "x" * 80, "level": 0})
    (refused,) = into.write(*things(into, 1, 2, 3), large)
    assert (refused.index, refused.reason, refused.transient) == (3, "too_large", False)
    found = [json.loads(one.body) for one in receiver.received]
    assert [len(one["rows"]) for one in found] == [2, 1]
    assert {one["site"] for one in found} == {"n"}


def test_keys_of_idempotency_are_those_of_the_rows_and_not_of_the_attempt(receiver: Receiver) -> None:
    first, again = writing(receiver), writing(receiver)
    for into in (first, again):
        assert into.write(*things(into, 1, 2)) == []
    assert first.write(*things(first, 1, 2)) == []
    keys = [one.headers["Idempotency-Key"] for one in receiver.received]
    assert keys[0] == keys[1]
    assert keys[0].startswith("t-0-0-1-")
    assert keys[2].startswith("t-0-2-3-"), "later records with the same contents have another key"
    assert len(receiver.rows("/in")) == 4, "the second attempt at the first two is known"


def test_a_signature_is_that_of_standard_webhooks(receiver: Receiver) -> None:
    secret = base64.b64encode(b"0123456789abcdef").decode()
    into = writing(receiver, signing__secret=f"whsec_{secret}")
    assert into.write(*things(into, 1)) == []
    (one,) = receiver.received
    headers = {name.lower(): value for name, value in one.headers.items()}
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + one.body
    digest = hmac.new(b"0123456789abcdef", signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert headers["webhook-id"] == headers["idempotency-key"]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503, 599])
def test_a_server_that_asks_for_a_repeat(receiver: Receiver, status: int) -> None:
    into = writing(receiver)
    rows = things(into, 1)
    receiver.planned.append(lambda handler: handler.reply(status, "later", Retry_After="7"))
    with pytest.raises(Unavailable, match=f"answered {status}: later") as away:
        into.write(*rows)
    assert away.value.retry_after_ms == 7_000
    assert into.write(*rows) == []


def test_what_was_sent_before_the_server_took_no_more_is_not_sent_again(receiver: Receiver) -> None:
    into = writing(receiver, request__format="RECORD")
    receiver.planned += [lambda handler: handler.reply(200), lambda handler: handler.reply(503)]
    failed = into.write(*things(into, 1, 2, 3))
    assert [(one.index, one.transient) for one in failed] == [(1, True), (2, True)]
    assert len(receiver.received) == 2


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405])
def test_an_answer_that_blames_nobodys_record_stops_the_task(receiver: Receiver, status: int) -> None:
    into = writing(receiver)
    receiver.planned.append(lambda handler: handler.reply(status, "no", Location="http://127.0.0.1:1/"))
    with pytest.raises(SinkConfigError, match=rf"connect\.http\.url: POST /in: the server answered {status}: no"):
        into.write(*things(into, 1))
    assert len(receiver.received) == 1


def test_one_bad_row_of_many_is_found(receiver: Receiver) -> None:
    receiver.limited.add("/in")
    into = writing(receiver)
    (refused,) = into.write(*things(into, *range(10), 40_000, *range(10, 20)))
    assert (refused.index, refused.reason, refused.transient) == (10, "rejected", False)
    assert [row["level"] for row in receiver.rows("/in")] == list(range(20))


def test_statuses_may_be_given_other_meanings(receiver: Receiver) -> None:
    into = writing(receiver, retry__statuses="409,500-599", bad__record__statuses="418")
    receiver.planned += [lambda handler: handler.reply(409), lambda handler: handler.reply(418)]
    rows = things(into, 1)
    with pytest.raises(Unavailable):
        into.write(*rows)
    (refused,) = into.write(*rows)
    assert refused.reason == "rejected"
    receiver.planned.append(lambda handler: handler.reply(422))
    with pytest.raises(SinkConfigError):
        into.write(*rows)


def test_a_conflict_is_another_request_with_the_same_key(receiver: Receiver) -> None:
    """The server still works at the first one, whose answer was lost; without keys the row is in conflict."""
    into = writing(receiver)
    receiver.planned.append(lambda handler: handler.reply(409))
    rows = things(into, 1)
    with pytest.raises(Unavailable, match="409"):
        into.write(*rows)
    assert into.write(*rows) == []
    for keys in ({"idempotency__header": ""}, {"bad__record__statuses": "409"}):
        into = writing(receiver, **keys)
        receiver.planned.append(lambda handler: handler.reply(409))
        (refused,) = into.write(*things(into, 1))
        assert (refused.reason, refused.transient) == ("rejected", False)


def test_an_answer_that_repeats_the_request_shows_no_secret(receiver: Receiver) -> None:
    """What it says goes into the log, the task's trace and the headers of dead letters."""
    headers = {"secret__headers": "X-Key: hidden-key", "bearer__token": "hidden-token"}
    into = writing(receiver, **headers)
    echo = "x" * 290 + "hidden-key Bearer hidden-token and more"
    for status, expected in ((503, Unavailable), (403, SinkConfigError)):
        receiver.planned.append(partial(Handler.reply, status=status, text=echo))
        with pytest.raises(expected, match=r"x\*+") as told:
            into.write(*things(into, 1))
        assert "hid" not in str(told.value)
    receiver.planned.append(lambda handler: handler.reply(422, "who is hidden-token?"))
    (refused,) = into.write(*things(into, 1))
    assert str(refused.error) == "the server answered 422: who is ******?"


def test_a_task_that_lost_its_partition_while_others_had_the_connections_sends_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Batch] = []

    class Slots(threading.BoundedSemaphore):
        """While one waits for a connection, the partition goes to another task."""

        def acquire(self, *arguments: Any, **named: Any) -> bool:
            while waiting:
                waiting.pop().ownership.release()
            return super().acquire(*arguments, **named)

        __enter__ = acquire

    monkeypatch.setattr(threading, "BoundedSemaphore", Slots)
    into = writing(receiver)
    for number in range(2):
        assert into.write(*things(into, 1)) == [], "with and without an idle connection"
        if number:
            into.sink.close()
        batch = Batch("t", 0, [row for one in things(into, 2) for row in one.rows])
        waiting.append(batch)
        with pytest.raises(OwnershipLostError):
            into.sink.write(batch)
    assert [one.rows[0]["level"] for one in receiver.received] == [1, 1]


def test_addresses_of_rows_and_deletions(receiver: Receiver) -> None:
    kcql = "INSERT INTO _value.place SELECT id, level FROM t PK _key PROPERTIES('behavior.on.null.values'='DELETE')"
    into = writing(receiver, kcql, PLACED, "/v1/{target}/{id}?x=1", method="PUT", request__format="RECORD")
    rows = [into.prepare({"id": "a", "level": 1, "place": place}, "k/1") for place in ("p q", "..", "p")]
    (refused,) = into.write(*rows)
    assert (refused.index, refused.reason) == (1, "target")
    assert [(one.method, one.path) for one in receiver.received] == [
        ("PUT", "/v1/p%20q/k%2F1?x=1"),
        ("PUT", "/v1/p/k%2F1?x=1"),
    ]
    receiver.planned.append(lambda handler: handler.reply(404))
    (missing,) = into.write(rows[0])
    assert missing.reason == "rejected", "the address is the row's"

    fixed = writing(receiver, kcql.replace("_value.place", "p"), PLACED, "/{id}", request__format="RECORD")
    receiver.planned += [lambda handler: handler.reply(204), lambda handler: handler.reply(404)]
    assert fixed.write(fixed.prepare(None, "k1")) == fixed.write(fixed.prepare(None, "k1")) == []
    assert (receiver.received[-1].method, receiver.received[-1].path) == ("DELETE", "/k1")


def hang(released: threading.Event) -> Any:
    return lambda _handler: released.wait(60)


def trickle(released: threading.Event) -> Any:
    """One letter of a header after the other: no read of the client takes long."""

    def answer(handler: Handler) -> None:
        handler.close_connection = True
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        while not released.wait(0.02):
            handler.wfile.write(b"x")

    return answer


def lie(text: bytes) -> Any:
    def answer(handler: Handler) -> None:
        handler.wfile.write(text)
        handler.close_connection = True

    return lambda _released: answer


closing_without_answer = lie(b"")


@pytest.mark.parametrize(
    "misbehave",
    [
        hang,
        trickle,
        closing_without_answer,
        lie(b"\x00\xff\r\n\r\n"),
        lie(b"HTTP/1.1 abc\r\n\r\n"),
        lie(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n"),
        lie(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000),
    ],
    ids=["hangs", "trickles", "closes", "bytes", "no status", "many headers", "long header"],
)
def test_a_server_that_does_not_answer_in_time_or_not_in_http(receiver: Receiver, misbehave: Any) -> None:
    into = writing(receiver, **IMPATIENT)
    rows, released = things(into, 1), threading.Event()
    # A connection that is closed without an answer may have been idle for too long: another one is tried.
    receiver.planned += [misbehave(released)] * (2 if misbehave is closing_without_answer else 1)
    with pytest.raises(Unavailable, match=r"no answer from 127\.0\.0\.1") as away:
        into.write(*rows)
    released.set()
    assert "hidden" not in str(away.value)
    assert into.write(*rows) == []
    assert receiver.rows("/in") == [{"id": "d0", "level": 1}]


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\nwhat nobody expects",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000,
    ],
    ids=["short body", "bad chunk", "unasked body", "large body"],
)
def test_a_server_that_has_sent_its_status_has_decided(receiver: Receiver, text: bytes) -> None:
    into = writing(receiver, **IMPATIENT)
    receiver.planned.append(lie(text)(None))
    assert into.write(*things(into, 1)) == []
    assert into.write(*things(into, 2)) == []
    assert len(receiver.received) == 2


def test_a_body_that_comes_byte_by_byte_ends_at_the_limit(receiver: Receiver) -> None:
    into, released = writing(receiver, **IMPATIENT), threading.Event()

    def answer(handler: Handler) -> None:
        handler.close_connection = True
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while not released.wait(0.02):
            handler.wfile.write(b"x")

    receiver.planned.append(answer)
    assert into.write(*things(into, 1)) == []
    released.set()


def test_no_more_requests_at_once_than_allowed(receiver: Receiver) -> None:
    into = writing(receiver, concurrent__requests="2")
    lock, begun, released = threading.Lock(), threading.Semaphore(0), threading.Event()
    active, highest = [0], [0]

    def slow(handler: Handler) -> None:
        with lock:
            active[0] += 1
            highest[0] = max(highest[0], active[0])
        begun.release()
        released.wait(30)
        with lock:
            active[0] -= 1
        handler.reply(200)

    receiver.planned += [slow] * 6
    batches = [things(into, number) for number in range(6)]
    threads = [threading.Thread(target=into.write, args=rows) for rows in batches]
    for thread in threads:
        thread.start()
    for _ in range(2):
        assert begun.acquire(timeout=30)
    released.set()
    for thread in threads:
        thread.join(30)
    assert highest == [2]
    assert len(receiver.received) == 6


def test_a_server_that_is_away_and_one_that_nobody_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    with closing(Receiver(authority.server)) as receiver:
        # A proxy of the environment is not asked.
        for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        url = f"https://localhost:{receiver.port}/in"
        trusting = made(THING, **{"url": url, "ssl.certificate.authorities": str(authority.certificates)})
        trusting.sink.open()
        assert trusting.write(*things(trusting, 1)) == []
        stranger = made(THING, url=url)
        with pytest.raises(SinkConfigError, match="verify failed"):
            stranger.sink.open()
        trusting.sink.close()
    with pytest.raises(Unavailable, match="ConnectionRefusedError"):
        trusting.sink.open()


def test_a_proxy_that_is_named_gets_the_whole_address(receiver: Receiver) -> None:
    proxy = {"proxy.url": f"http://127.0.0.1:{receiver.port}"}
    into = made(THING, url="http://example.invalid/in", **proxy)
    assert into.write(*things(into, 1)) == []
    (one,) = receiver.received
    assert (one.path, one.headers["Host"]) == ("http://example.invalid:80/in", "example.invalid")
    # With TLS the proxy is asked for a tunnel.
    tunnelled = made(THING, url="https://example.invalid/in", **proxy)
    receiver.planned.append(lambda handler: handler.reply(403))
    with pytest.raises(Unavailable, match="403"):
        tunnelled.sink.open()
    assert (receiver.received[-1].method, receiver.received[-1].path) == ("CONNECT", "example.invalid:443")


def test_a_proxy_that_makes_the_tunnel_byte_by_byte_ends_at_the_limit(receiver: Receiver) -> None:
    proxy = {"proxy.url": f"http://127.0.0.1:{receiver.port}", "connect.timeout.ms": "300"}
    into, released = made(THING, url="https://example.invalid/in", **proxy), threading.Event()
    receiver.planned.append(trickle(released))
    with pytest.raises(Unavailable, match=r"not connected within 0\.3 s"):
        into.sink.open()
    released.set()


def test_times_and_absent_values_are_written_as_in_other_json(receiver: Receiver) -> None:
    fields = [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]
    schema = {"type": "record", "name": "At", "fields": [*fields, {"name": "note", "type": ["null", "string"]}]}
    into = writing(receiver, schema=schema)
    assert into.write(into.prepare({"at": TIMESTAMP_MS, "note": None})) == []
    assert receiver.received[0].rows == [{"at": TIMESTAMP_MS, "note": None}]
