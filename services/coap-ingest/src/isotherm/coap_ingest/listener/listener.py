"""The CoAP server that devices POST and PUT readings to: answered 2.04 when Kafka has them, and not before."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from aiocoap import CON, POST, PUT, Message  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.numbers import OptionNumber, codes  # type: ignore[import-untyped]  # aiocoap ships no types
from confluent_kafka import KafkaError, KafkaException

from isotherm import payloads
from isotherm.coap_ingest.coap import blockwise, dtls, receive_buffers
from isotherm.coap_ingest.coap.client import block_text
from isotherm.coap_ingest.coap.messaging import ServerContext
from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.coap.resource import Resource
from isotherm.coap_ingest.connectors.connector_class import Listen, Plan
from isotherm.coap_ingest.connectors.connector_keys import LISTEN_IDENTITY
from isotherm.coap_ingest.ingest.records import (
    Headers,
    headers,
    message_record,
    readings,
)
from isotherm.coap_ingest.ingest.routes import Encode, Route
from isotherm.coap_ingest.listener.identity import IdentityPolicy, device_of_path
from isotherm.coap_ingest.listener.message_id_cache import RememberedRequests
from isotherm.coap_ingest.listener.rate_limits import Admission
from isotherm.coap_ingest.metrics import Metrics
from isotherm.servicekit import logs
from isotherm.servicekit.delivery import LoopProducer, QueueFullError

_log = logs.logger(__name__)

_READABLE = (0, 42, 50, 60, 110, 112)
_LINK_FORMAT = 40
_WELL_KNOWN = (".well-known", "core")
_NOT_IN_A_TRANSFER = (OptionNumber.BLOCK1, OptionNumber.BLOCK2, OptionNumber.OBSERVE)
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


class Listener:
    """Serves one connector's routes; `open` first, `close` at the end.

    It is its context's site, and the gate that requests pass before the message layer remembers them.
    """

    def __init__(
        self,
        plan: Plan,
        listen: Listen,
        encoders: Mapping[str, Encode],
        producer: LoopProducer,
        limits: payloads.Limits,
        metrics: Metrics,
        *,
        remembered_requests: int,
    ) -> None:
        self._plan = plan
        self._listen = listen
        self._encoders = encoders
        self._producer = producer
        self._limits = limits
        self._metrics = metrics
        self._admission = Admission(listen.rate)
        self._remembered = RememberedRequests(remembered_requests)
        self._assemblies = blockwise.Assemblies(max_bytes=max(blockwise.MAX_BYTES, blockwise.SHARES * limits.max_bytes))
        self._context: Any = None
        self._waiting_since: dict[int, float] = {}
        self._requests = 0
        self._is_closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._changed = metrics.requests.labels(plan.name, codes.CHANGED.dotted)
        self._repeated = {
            is_answered: metrics.repeated_requests.labels(plan.name, "answered" if is_answered else "ignored")
            for is_answered in (True, False)
        }
        self._forgotten = metrics.forgotten_requests.labels(plan.name)

    async def open(self, receive_buffer_bytes: int) -> None:
        """Begin to listen. Raises OSError when the address is not free."""
        server = self._listen.server
        context = ServerContext(self, self, self._remembered)
        if server.scheme == "coaps":
            await dtls.listen(context, server.host, server.port, self._listen.keys)
        else:
            await context.listen_udp(server.host, server.port)
        receive_buffers.widen(context, receive_buffer_bytes)
        # Not before: `watch` looks into it meanwhile.
        self._context = context
        _log.info("listening", connector=self._plan.name, uri=server.base)

    def watch(self) -> None:
        """Let go of what is over, and show in the metrics what is held for devices; to be called every second or so."""
        now_s = time.monotonic()
        self._remembered.expire(now_s)
        self._assemblies.expire(now_s)
        name = self._plan.name
        self._metrics.remembered_requests.labels(name).set(len(self._remembered))
        self._forgotten.inc(self._remembered.forgotten_early)
        self._remembered.forgotten_early = 0
        self._metrics.transfers.labels(name).set(len(self._assemblies))
        if self._context is not None and self._listen.server.scheme == "coaps":
            for state, count in zip(("handshake", "session"), dtls.peers(self._context), strict=True):
                self._metrics.dtls_peers.labels(name, state).set(count)

    async def close(self, timeout_s: float) -> None:
        """Take nothing more, answer what was taken, for at most so long, and free the port. Safe to call twice."""
        self._is_closing = True
        if self._context is None:
            return
        try:
            if self._requests:
                await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            _log.warning("requests stay without an answer", connector=self._plan.name, count=self._requests)
        context, self._context = self._context, None
        await context.shutdown()

    def refusal_of(self, request: Any) -> Any | None:
        """As `Gate.refusal_of`: by the rate of the device. The next block of a transfer belongs to its first one."""
        if self._is_closing:
            return self._refused(Refusal(codes.SERVICE_UNAVAILABLE, "stopping", max_age_s=_TRY_AGAIN_S))
        block1 = request.opt.block1
        if block1 is not None and self._assemblies.expects(_transfer_key(request), block1.start):
            return None
        wait_s = self._admission.wait_s(_device(request), time.monotonic())
        if not wait_s:
            return None
        said = f"over {self._listen.rate.requests} requests in {self._listen.rate.seconds} s"
        return self._refused(Refusal(codes.TOO_MANY_REQUESTS, said, max_age_s=math.ceil(wait_s)))

    def admits_repetition(self, request: Any) -> bool:
        """As `Gate.admits_repetition`: repetitions count as requests of the device."""
        is_admitted = not self._admission.wait_s(_device(request), time.monotonic())
        self._repeated[is_admitted].inc()
        return is_admitted

    async def render_to_pipe(self, pipe: Any) -> None:
        """Answer a request, or take a block of one; aiocoap calls it for each that passed the gate."""
        self._requests += 1
        self._idle.clear()
        try:
            pipe.add_response(await self._answer(pipe.request), is_last=True)
        finally:
            self._requests -= 1
            if not self._requests:
                self._idle.set()

    async def _answer(self, request: Any) -> Any:
        block1 = request.opt.block1
        try:
            path = tuple(request.opt.uri_path)
            if path == _WELL_KNOWN and request.code == codes.GET:
                return self._list(request)
            self._check(request, path)
            if block1 is None:
                payload = request.payload
            else:
                whole = self._assembled(request, block1)
                if whole is None:
                    return Message(code=codes.CONTINUE, block1=block1)
                payload = whole
            resource = Resource(self._listen.server, path, tuple(request.opt.uri_query))
            await self._store(self._records(_notification(request, resource, payload)))
        except Refusal as refusal:
            answer = self._refused(refusal)
        else:
            self._changed.inc()
            answer = Message(code=codes.CHANGED)
        # Where a payload is refused before its end, the option would ask for smaller blocks (RFC 7959 section 2.9.3).
        if block1 is not None and not block1.more:
            answer.opt.block1 = block1
        return answer

    def _list(self, request: Any) -> Any:
        """The answer to a discovery, or the block of it that is asked for; made anew each time, so nothing is kept."""
        answer = Message(code=codes.CONTENT, payload=self._links().encode(), content_format=_LINK_FORMAT)
        block2, most = request.opt.block2, request.remote.maximum_payload_size
        if block2 is None and len(answer.payload) <= most:
            return answer
        number, size = (0, request.remote.maximum_block_size_exp) if block2 is None else (block2[0], block2[2])
        return answer._extract_block(number, size, most)

    def _check(self, request: Any, path: tuple[str, ...]) -> None:
        """What can be refused before a payload is complete. Raises Refusal."""
        if request.code not in (POST, PUT):
            raise Refusal(codes.METHOD_NOT_ALLOWED, "POST or PUT readings")
        acl, identity = self._listen.acl, dtls.identity_of(request.remote)
        if acl is not None and (identity is None or not acl.permits(identity, path)):
            raise Refusal(codes.FORBIDDEN, f"{identity} may not send to this path")
        block1 = request.opt.block1
        size = len(request.payload) + (0 if block1 is None else block1.start)
        if max(size, request.opt.size1 or 0) > self._limits.max_bytes:
            said = f"over {self._limits.max_bytes} bytes"
            raise Refusal(codes.REQUEST_ENTITY_TOO_LARGE, said, size1=self._limits.max_bytes)

    def _assembled(self, request: Any, block1: Any) -> bytes | None:
        """The whole payload when `request` has its last block, else None. Raises Refusal."""
        key, block = _transfer_key(request), bytes(request.payload)
        if block1.more and not block1.is_valid_for_payload_size(len(block)):
            raise Refusal(codes.BAD_REQUEST, "the payload is not as long as Block1 says")
        try:
            if not block1.more:
                return self._assemblies.complete(key, block1.start, block)
            self._assemblies.add(key, _device(request), block1.start, block, time.monotonic())
        except blockwise.IncompleteError:
            raise Refusal(codes.REQUEST_ENTITY_INCOMPLETE, "begin anew with the first block") from None
        except blockwise.TooManyTransfersError:
            said = "too many payloads in blocks"
            raise Refusal(codes.SERVICE_UNAVAILABLE, said, max_age_s=_TRY_AGAIN_S) from None
        return None

    def _refused(self, refusal: Refusal) -> Any:
        self._metrics.requests.labels(self._plan.name, refusal.code.dotted).inc()
        text = str(refusal).encode()[:512]
        return Message(code=refusal.code, payload=text, max_age=refusal.max_age_s, size1=refusal.size1)

    def _records(self, notification: Notification) -> list[_Record]:
        resource = notification.resource
        routes = [rule.route(resource) for rule in self._plan.rules if all(resource.path) and rule.matches(resource)]
        if not routes:
            raise Refusal(codes.NOT_FOUND, "no statement reads this resource")
        if any(route.rules for route in routes) and notification.content_format not in (None, *_READABLE):
            raise Refusal(codes.UNSUPPORTED_CONTENT_FORMAT, f"readable: {', '.join(map(str, _READABLE))}")
        try:
            return [record for route in routes for record in self._of_route(notification, route)]
        except payloads.IdentityError as error:
            said = f"{error.reason} ({LISTEN_IDENTITY} = {self._listen.identity.value})"
            raise Refusal(codes.FORBIDDEN, said) from error
        except payloads.PayloadError as error:
            raise Refusal(codes.BAD_REQUEST, error.reason) from error

    def _of_route(self, notification: Notification, route: Route) -> list[_Record]:
        topic, encode, said = route.topic.name, self._encoders[route.topic.name], headers(notification)
        policy = self._listen.identity
        if policy is IdentityPolicy.TOPIC:
            device = device_of_path(route.statement.source, notification.resource.path)
            if device is None:
                raise Refusal(codes.NOT_FOUND, f"the path names no device ({LISTEN_IDENTITY} = {policy.value})")
            notification = replace(notification, device_id=device)
        if route.rules is None:
            return [_Record(topic, route.key(notification), encode(message_record(notification)), said)]
        found = readings(notification, route.rules, is_bound=policy is not IdentityPolicy.PAYLOAD)
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


def _transfer_key(request: Any) -> Hashable:
    """What the blocks of one payload have in common (RFC 7959 section 2.5): their sender, code and other options."""
    return request.remote.blockwise_key, request.code, request.get_cache_key(_NOT_IN_A_TRANSFER)


def _notification(request: Any, resource: Resource, payload: bytes) -> Notification:
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
        payload=bytes(payload),
        content_format=None if opt.content_format is None else int(opt.content_format),
        accept=None if opt.accept is None else int(opt.accept),
        size1=opt.size1,
        block1=block_text(opt.block1),
    )
