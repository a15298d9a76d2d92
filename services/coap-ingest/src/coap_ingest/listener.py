"""The CoAP server that devices POST and PUT readings to: answered 2.04 when Kafka has them, and not before."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from aiocoap import CON, POST, PUT, Context, Message  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap import resource as coap_resource
from aiocoap.numbers import codes  # type: ignore[import-untyped]  # aiocoap ships no types
from confluent_kafka import KafkaError, KafkaException

import payloads
from coap_ingest import buffers, dtls
from coap_ingest.admission import Admission
from coap_ingest.client import block_text
from coap_ingest.connector_class import Listen, Plan
from coap_ingest.metrics import Metrics
from coap_ingest.notification import Notification
from coap_ingest.records import Headers, headers, message_record, readings
from coap_ingest.resource import Resource
from coap_ingest.routes import Encode, Route
from servicekit import logs
from servicekit.delivery import LoopProducer, QueueFullError

_log = logs.logger(__name__)

_READABLE = (0, 42, 50, 60, 110, 112)
_LINK_FORMAT = 40
_WELL_KNOWN = (".well-known", "core")
_MAX_ASSEMBLIES = 64
"""Payloads in blocks that are under way at once: each may hold a whole payload's memory for a minute and a half."""
_REMEMBERED_REQUESTS = 65_536
_TRY_AGAIN_S = 5


class Refusal(Exception):
    """A request that is answered with an error code."""

    def __init__(self, code: Any, text: str, *, max_age_s: int | None = None, size1: int | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.max_age_s = max_age_s
        self.size1 = size1


class _Record(NamedTuple):
    topic: str
    key: str
    value: bytes
    headers: Headers


class Remembered(dict[Hashable, Any]):
    """The requests that a repetition is known by: the newest ones, so that memory has a bound.

    The library keeps them for EXCHANGE_LIFETIME (247 s, RFC 7252 section 4.8.2), however many there are.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: Hashable, value: Any) -> None:
        super().__setitem__(key, value)
        if len(self) > self._limit:
            del self[next(iter(self))]

    def pop(self, key: Hashable, _default: Any = None) -> Any:
        """Forget a request; it may have had to make room before."""
        return super().pop(key, None)


class Listener(coap_resource.Resource):  # type: ignore[misc]  # aiocoap has no types
    """Serves one connector's routes; `open` first, `close` at the end."""

    def __init__(
        self,
        plan: Plan,
        listen: Listen,
        encoders: Mapping[str, Encode],
        producer: LoopProducer,
        limits: payloads.Limits,
        metrics: Metrics,
    ) -> None:
        super().__init__()
        self._plan = plan
        self._listen = listen
        self._encoders = encoders
        self._producer = producer
        self._limits = limits
        self._metrics = metrics
        self._admission = Admission(listen.rate)
        self._context: Any = None
        self._waiting_since: dict[int, float] = {}
        self._requests = 0
        self._is_closing = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def open(self, receive_buffer_bytes: int) -> None:
        """Begin to listen. Raises OSError when the address is not free."""
        server = self._listen.server
        address = (server.host, server.port)
        if server.scheme == "coaps":
            self._context = await dtls.serve(self, *address, self._listen.keys)
        else:
            self._context = await Context.create_server_context(self, bind=address, transports=["udp6"])
        buffers.widen(self._context, receive_buffer_bytes)
        (tokens,) = self._context.request_interfaces
        tokens.token_interface._recent_messages = Remembered(_REMEMBERED_REQUESTS)
        _log.info("listening", connector=self._plan.name, uri=server.base)

    def watch(self) -> None:
        """Show in the metrics what is held for devices."""
        if self._context is not None and self._listen.server.scheme == "coaps":
            for state, count in zip(("handshake", "session"), dtls.peers(self._context), strict=True):
                self._metrics.dtls_peers.labels(self._plan.name, state).set(count)

    async def close(self, timeout_s: float) -> None:
        """Take nothing more, answer what was taken, for at most so long, and free the port. Safe to call twice."""
        self._is_closing = True
        if self._context is None:
            return
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            _log.warning("requests stay without an answer", connector=self._plan.name, count=self._requests)
        context, self._context = self._context, None
        await context.shutdown()

    async def render_to_pipe(self, pipe: Any) -> None:
        """Answer a request, or take a block of one."""
        self._requests += 1
        self._idle.clear()
        try:
            try:
                self._admit(pipe.request)
            except Refusal as refusal:
                pipe.add_response(self._refused(refusal), is_last=True)
            else:
                await super().render_to_pipe(pipe)
        finally:
            self._requests -= 1
            if not self._requests:
                self._idle.set()

    def _admit(self, request: Any) -> None:
        """What can be refused before a payload is complete. Raises Refusal."""
        block1 = request.opt.block1
        if self._is_closing:
            raise Refusal(codes.SERVICE_UNAVAILABLE, "stopping", max_age_s=_TRY_AGAIN_S)
        if block1 is None or block1.block_number == 0:
            wait_s = self._admission.wait_s(_device(request), time.monotonic())
            if wait_s:
                said = f"over {self._listen.rate.requests} requests in {self._listen.rate.seconds} s"
                raise Refusal(codes.TOO_MANY_REQUESTS, said, max_age_s=math.ceil(wait_s))
        size = len(request.payload) + (0 if block1 is None else block1.start)
        if max(size, request.opt.size1 or 0) > self._limits.max_bytes:
            said = f"over {self._limits.max_bytes} bytes"
            raise Refusal(codes.REQUEST_ENTITY_TOO_LARGE, said, size1=self._limits.max_bytes)
        under_way = len(self._block1._assemblies._items)
        if block1 is not None and block1.more and block1.block_number == 0 and under_way >= _MAX_ASSEMBLIES:
            raise Refusal(codes.SERVICE_UNAVAILABLE, "too many payloads in blocks", max_age_s=_TRY_AGAIN_S)

    async def render(self, request: Any) -> Any:
        """The answer to a complete request."""
        try:
            path = tuple(request.opt.uri_path)
            if path == _WELL_KNOWN and request.code == codes.GET:
                return Message(code=codes.CONTENT, payload=self._links().encode(), content_format=_LINK_FORMAT)
            if request.code not in (POST, PUT):
                raise Refusal(codes.METHOD_NOT_ALLOWED, "POST or PUT readings")
            await self._store(self._records(request, Resource(self._listen.server, path, tuple(request.opt.uri_query))))
        except Refusal as refusal:
            return self._refused(refusal)
        self._metrics.requests.labels(self._plan.name, codes.CHANGED.dotted).inc()
        return Message(code=codes.CHANGED)

    def _refused(self, refusal: Refusal) -> Any:
        self._metrics.requests.labels(self._plan.name, refusal.code.dotted).inc()
        text = str(refusal).encode()[:512]
        return Message(code=refusal.code, payload=text, max_age=refusal.max_age_s, size1=refusal.size1)

    def _records(self, request: Any, resource: Resource) -> list[_Record]:
        routes = [rule.route(resource) for rule in self._plan.rules if all(resource.path) and rule.matches(resource)]
        if not routes:
            raise Refusal(codes.NOT_FOUND, "no statement reads this resource")
        notification = _notification(request, resource)
        if any(route.rules for route in routes) and notification.content_format not in (None, *_READABLE):
            raise Refusal(codes.UNSUPPORTED_CONTENT_FORMAT, f"readable: {', '.join(map(str, _READABLE))}")
        try:
            return [record for route in routes for record in self._of_route(notification, route)]
        except payloads.PayloadError as error:
            raise Refusal(codes.BAD_REQUEST, error.reason) from error

    def _of_route(self, notification: Notification, route: Route) -> list[_Record]:
        topic, encode, said = route.topic.name, self._encoders[route.topic.name], headers(notification)
        if route.rules is None:
            return [_Record(topic, route.key(notification), encode(message_record(notification)), said)]
        found = readings(notification, route.rules)
        return [_Record(topic, reading.device_id, encode(reading.as_record()), said) for reading in found]

    async def _store(self, records: list[_Record]) -> None:
        """Return when Kafka has all of them. Raises Refusal."""
        now = time.monotonic()
        oldest = next(iter(self._waiting_since.values()), now)
        if (now - oldest) * 1000 > self._listen.stalled_after_ms:
            raise Refusal(codes.SERVICE_UNAVAILABLE, "Kafka does not answer", max_age_s=_TRY_AGAIN_S)
        results = await asyncio.gather(*(self._deliver(record) for record in records))
        error = next((result for result in results if result is not None), None)
        if error is not None:
            raise Refusal(codes.SERVICE_UNAVAILABLE, f"not stored: {error}", max_age_s=_TRY_AGAIN_S)

    async def _deliver(self, record: _Record) -> str | None:
        """None when Kafka has the record, else why not."""
        done: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
        number = id(done)

        def report(error: KafkaError | None) -> None:
            self._waiting_since.pop(number, None)
            if error is None:
                self._metrics.produced.labels(record.topic).inc()
            if not done.done():
                done.set_result(error)

        self._waiting_since[number] = time.monotonic()
        try:
            self._producer.produce(
                record.topic, key=record.key, value=record.value, headers=record.headers, on_delivery=report
            )
        except QueueFullError:
            self._waiting_since.pop(number)
            return "too much waits for Kafka"
        except KafkaException as failure:
            self._waiting_since.pop(number)
            return str(failure.args[0].str())
        try:
            # The producer's own limit does not hold for a record that is under way to a broker that hangs.
            async with asyncio.timeout(self._listen.timeout_ms / 1000):
                error = await done
        except TimeoutError:
            return "Kafka does not answer"
        return None if error is None else error.str()

    def _links(self) -> str:
        """What `/.well-known/core` says (RFC 6690): a pattern is described by its part before the first `*`."""
        paths = dict.fromkeys(
            rule.statement.source.removeprefix("/").partition("*")[0].rstrip("/") for rule in self._plan.rules
        )
        formats = " ".join(map(str, _READABLE))
        return ",".join(f'</{path}>;rt="isotherm.readings";ct="{formats}"' for path in paths)


def _device(request: Any) -> str:
    """Over DTLS the identity whose key the device has; else its address without its port, which changes."""
    return dtls.identity_of(request.remote) or str(request.remote.sockaddr[0]).removeprefix("::ffff:")


def _notification(request: Any, resource: Resource) -> Notification:
    opt = request.opt
    return Notification(
        resource=resource,
        source=request.remote.hostinfo,
        device_id=_device(request),
        identity=dtls.identity_of(request.remote),
        arrived_ms=time.time_ns() // 1_000_000,
        rtt_ms=0,
        code=request.code.dotted,
        raw_code=int(request.code),
        message_type="CON" if request.mtype is CON else "NON",
        message_id=request.mid,
        token=bytes(request.token),
        destination=resource.server.authority,
        payload=bytes(request.payload),
        content_format=None if opt.content_format is None else int(opt.content_format),
        accept=None if opt.accept is None else int(opt.accept),
        size1=opt.size1,
        block1=block_text(opt.block1),
    )
