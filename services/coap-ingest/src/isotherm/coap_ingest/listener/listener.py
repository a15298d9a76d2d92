"""The CoAP server to which devices POST and PUT readings. It answers 2.04 when Kafka has them, and not before."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aiocoap import CON, POST, PUT, Message  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.error import BadRequest  # type: ignore[import-untyped]  # aiocoap ships no types
from aiocoap.numbers import OptionNumber, codes  # type: ignore[import-untyped]  # aiocoap ships no types

from isotherm import payloads
from isotherm.coap_ingest.coap import blockwise, dtls, receive_buffer
from isotherm.coap_ingest.coap.message_id_cache import MessageIdCache
from isotherm.coap_ingest.coap.message_layer import ServerContext
from isotherm.coap_ingest.coap.messages import block_text
from isotherm.coap_ingest.coap.notification import Notification
from isotherm.coap_ingest.coap.options import BadOptionError, check_options, traceparent_of, uint_or_none
from isotherm.coap_ingest.coap.resource import Resource
from isotherm.coap_ingest.ingest.outlets import KafkaRecord
from isotherm.coap_ingest.ingest.routes import Encode
from isotherm.coap_ingest.ingest.traces import begin_trace, with_trace
from isotherm.coap_ingest.listener.answers import CHANGED, Answer, RequestError
from isotherm.coap_ingest.listener.plain_requests import PlainRequests
from isotherm.coap_ingest.listener.plan import ListenPlan
from isotherm.coap_ingest.listener.rate_limiter import RateLimiter
from isotherm.coap_ingest.listener.record_writer import NotStoredError, OnStored, RecordWriter
from isotherm.coap_ingest.listener.request_records import READABLE_FORMATS, RequestRecords
from isotherm.coap_ingest.metrics import Metrics
from isotherm.servicekit import logs
from isotherm.servicekit.producer.delivery import LoopProducer

if TYPE_CHECKING:
    # Imports OpenTelemetry, which a process that does not trace has no use for.
    from isotherm.servicekit.tracing.ingest_traces import IngestTrace, IngestTraces

_log = logs.logger(__name__)

_LINK_FORMAT = 40
_WELL_KNOWN = (".well-known", "core")
_NOT_IN_TRANSFER_KEY = (OptionNumber.BLOCK1, OptionNumber.BLOCK2, OptionNumber.OBSERVE)
_TRY_AGAIN_S = 5


class Listener:
    """Serves the rules of one connector; call `open` first and `close` at the end.

    It is the site of its context, and the filter that requests pass before the message layer stores anything.
    """

    def __init__(
        self,
        plan: ListenPlan,
        encoders: Mapping[str, Encode],
        producer: LoopProducer,
        limits: payloads.Limits,
        metrics: Metrics,
        *,
        message_id_cache_size: int,
        sequences: payloads.SequenceGenerator | None = None,
        traces: IngestTraces | None = None,
    ) -> None:
        """`sequences` is shared by all that store readings of the same devices; without it the listener is alone."""
        self._plan = plan
        self._traces = traces
        sequences = sequences or payloads.SequenceGenerator()
        self._records = RequestRecords(plan, encoders, limits, sequences, metrics.count_filtered)
        self._writer = RecordWriter(
            producer, metrics, timeout_ms=plan.timeout_ms, stalled_after_ms=plan.stalled_after_ms
        )
        self._metrics = metrics
        self._rate_limiter = RateLimiter(plan.rate)
        self._cache = MessageIdCache(message_id_cache_size)
        max_bytes = max(blockwise.MAX_BYTES, blockwise.BYTE_SHARES * limits.max_bytes)
        self._transfers = blockwise.BlockwiseTransfers(max_bytes=max_bytes)
        self._context: Any = None
        self._plain: PlainRequests | None = None
        self._dropped = 0
        self._requests = 0
        self._is_closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._changed = metrics.requests.labels(plan.connector, codes.CHANGED.dotted)
        self._duplicates = {
            is_answered: metrics.duplicate_requests.labels(plan.connector, "answered" if is_answered else "ignored")
            for is_answered in (True, False)
        }
        self._evictions = metrics.message_id_cache_evictions.labels(plan.connector)

    async def open(self, receive_buffer_bytes: int) -> None:
        """Start to listen. Raises OSError when the address is not free."""
        server = self._plan.server
        context = ServerContext(self, self, self._cache)
        if server.scheme == "coaps":
            await dtls.listen(context, server.host, server.port, self._plan.keys)
        else:
            messages = await context.listen_udp(server.host, server.port)
            self._plain = PlainRequests(self, messages, self._cache)
            messages.message_interface.handler = self._plain.handle
        receive_buffer.enlarge(context, receive_buffer_bytes)
        # Set it last, because `maintain` uses the context while this coroutine waits.
        self._context = context
        _log.info("listening", connector=self._plan.connector, uri=server.base)

    def maintain(self) -> None:
        """Drop expired requests and transfers, and update the gauges; call it about once a second."""
        now_s = time.monotonic()
        self._cache.expire(now_s)
        self._transfers.expire(now_s)
        name = self._plan.connector
        self._metrics.message_id_cache_entries.labels(name).set(len(self._cache))
        self._evictions.inc(self._cache.evictions)
        self._cache.evictions = 0
        self._metrics.transfers.labels(name).set(len(self._transfers))
        if self._context is None:
            return
        dropped = receive_buffer.count_dropped(self._context)
        self._metrics.count_dropped_datagrams(name, dropped - self._dropped)
        self._dropped = dropped
        if self._plan.server.scheme == "coaps":
            for state, count in zip(("handshake", "session"), dtls.count_peers(self._context), strict=True):
                self._metrics.dtls_peers.labels(name, state).set(count)

    async def close(self, timeout_s: float) -> None:
        """Refuse new requests, answer those in progress within `timeout_s`, free the port. A second call is safe."""
        self._is_closing = True
        if self._context is None:
            return
        try:
            if self._requests:
                await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            _log.warning("requests remain unanswered", connector=self._plan.connector, count=self._requests)
        context, self._context = self._context, None
        self._writer.close()
        if self._plain is not None:
            self._plain.close()
        await context.shutdown()

    def rejection_of(self, request: Any) -> Any | None:
        """As `RequestFilter.rejection_of`: limit the rate of each device.

        A block that continues a transfer counts, but the rate hardly ever breaks the transfer.
        """
        block1 = None if self._is_closing else request.opt.block1
        continues = block1 is not None and self._transfers.expects(_transfer_key(request), block1.start)
        rejection = self.rejection(_device_of(request), continues=continues)
        return None if rejection is None else rejection.message()

    def rejection(self, device: str, *, continues: bool = False) -> Answer | None:
        """Count a request of `device`, which may continue a transfer; return the answer when it is not processed."""
        if self._is_closing:
            return self.refused(RequestError(codes.SERVICE_UNAVAILABLE, "stopping", max_age_s=_TRY_AGAIN_S))
        wait_s = self._rate_limiter.take(device, time.monotonic(), continues=continues)
        if not wait_s:
            return None
        rate = self._plan.rate
        text = f"over {rate.amount} requests in {rate.seconds} s"
        return self.refused(RequestError(codes.TOO_MANY_REQUESTS, text, max_age_s=math.ceil(wait_s)))

    def admits_duplicate(self, request: Any) -> bool:
        """As `RequestFilter.admits_duplicate`: a duplicate counts as a request of the device."""
        is_admitted = not self._rate_limiter.take(_device_of(request), time.monotonic())
        self._duplicates[is_admitted].inc()
        return is_admitted

    async def render_to_pipe(self, pipe: Any) -> None:
        """Answer a request, or a block of one; aiocoap calls it for each request that passed the filter."""
        self.begin_request()
        try:
            pipe.add_response(await self._answer(pipe.request), is_last=True)
        finally:
            self.end_request()

    def begin_request(self) -> None:
        """Count a request in progress."""
        self._requests += 1
        self._idle.clear()

    def end_request(self) -> None:
        """Count a request that is answered."""
        self._requests -= 1
        if not self._requests:
            self._idle.set()

    def resource(self, path: tuple[str, ...], query: tuple[str, ...]) -> Resource:
        """Return the resource that a request names."""
        return self._records.resource(path, query)

    def store(self, notification: Notification, on_stored: OnStored) -> None:
        """Store a complete request and call `on_stored` with None or the reason why not. Raises RequestError."""
        self._records.check_access(notification.identity, notification.resource.path)
        self._records.check_size(len(notification.payload))
        records, trace = self._traced_records(notification)
        self._writer.begin(records, on_stored, trace)

    def stored(self, problem: str | None) -> Answer:
        """Count what became of a request's records; return its answer."""
        if problem is None:
            self._changed.inc()
            return CHANGED
        return self.refused(RequestError(codes.SERVICE_UNAVAILABLE, problem, max_age_s=_TRY_AGAIN_S))

    def refused(self, error: RequestError) -> Answer:
        """Count a request that is refused; return its answer."""
        self._metrics.requests.labels(self._plan.connector, error.code.dotted).inc()
        return error.answer

    async def _answer(self, request: Any) -> Any:
        block1 = None
        try:
            check_options(request)
            block1 = request.opt.block1
            path = tuple(request.opt.uri_path)
            if path == _WELL_KNOWN and request.code == codes.GET:
                return self._answer_discovery(request)
            self._check(request, path)
            payload = request.payload if block1 is None else self._add_block(request, block1)
            if payload is None:
                return Message(code=codes.CONTINUE, block1=block1)
            resource = self._records.resource(path, tuple(request.opt.uri_query))
            await self._writer.write(*self._traced_records(_notification(request, resource, payload)))
        except BadOptionError as error:
            answer = self.refused(RequestError(error.code, str(error))).message()
        except RequestError as error:
            answer = self.refused(error).message()
        except NotStoredError as error:
            answer = self.stored(str(error)).message()
        else:
            answer = self.stored(None).message()
        # In the answer to an earlier block, the option would ask for smaller blocks (RFC 7959 section 2.9.3).
        if block1 is not None and not block1.more:
            answer.opt.block1 = block1
        return answer

    def _traced_records(self, notification: Notification) -> tuple[Sequence[KafkaRecord], IngestTrace | None]:
        trace = begin_trace(self._traces, "coap request", notification)
        try:
            return with_trace(trace, self._records.records(notification)), trace
        except Exception as error:
            if trace is not None:
                trace.end(f"refused: {error}")
            raise

    def _answer_discovery(self, request: Any) -> Any:
        """Return the list of resources, or the requested block of it; nothing is stored between the blocks."""
        answer = Message(code=codes.CONTENT, payload=self._links().encode(), content_format=_LINK_FORMAT)
        block2, most = request.opt.block2, request.remote.maximum_payload_size
        if block2 is None and len(answer.payload) <= most:
            return answer
        number, size = (0, request.remote.maximum_block_size_exp) if block2 is None else (block2[0], block2[2])
        try:
            return answer._extract_block(number, size, most)
        except BadRequest:
            raise RequestError(codes.BAD_REQUEST, "the list has no such block") from None

    def _check(self, request: Any, path: tuple[str, ...]) -> None:
        """Check what is known before the payload is complete. Raises RequestError."""
        if request.code not in (POST, PUT):
            raise RequestError(codes.METHOD_NOT_ALLOWED, "POST or PUT readings")
        self._records.check_access(dtls.identity_of(request.remote), path)
        block1 = request.opt.block1
        size = len(request.payload) + (0 if block1 is None else block1.start)
        self._records.check_size(max(size, uint_or_none(request.opt.size1, 31) or 0))

    def _add_block(self, request: Any, block1: Any) -> bytes | None:
        """Return the complete payload when `request` has its last block, else None. Raises RequestError."""
        key, block = _transfer_key(request), bytes(request.payload)
        if block1.more and not block1.is_valid_for_payload_size(len(block)):
            raise RequestError(codes.BAD_REQUEST, "the payload is not as long as Block1 says")
        try:
            if not block1.more:
                return self._transfers.complete(key, block1.start, block)
            self._transfers.add(key, _device_of(request), block1.start, block, time.monotonic())
        except blockwise.IncompleteError:
            raise RequestError(codes.REQUEST_ENTITY_INCOMPLETE, "start again with the first block") from None
        except blockwise.TooManyTransfersError:
            raise RequestError(
                codes.SERVICE_UNAVAILABLE, "too many block-wise transfers", max_age_s=_TRY_AGAIN_S
            ) from None
        return None

    def _links(self) -> str:
        """Return the content of `/.well-known/core` (RFC 6690); it lists a pattern by its part before the first `*`."""
        paths = dict.fromkeys(
            rule.statement.source.removeprefix("/").partition("*")[0].rstrip("/") for rule in self._plan.rules
        )
        formats = " ".join(map(str, READABLE_FORMATS))
        return ",".join(f'</{path}>;rt="isotherm.readings";ct="{formats}"' for path in paths)


def _device_of(request: Any) -> str:
    """Return the sender: over DTLS its identity, else its address without the port, which changes."""
    return dtls.identity_of(request.remote) or str(request.remote.sockaddr[0]).removeprefix("::ffff:")


def _transfer_key(request: Any) -> Hashable:
    """Return what the blocks of one payload have in common (RFC 7959 section 2.5): sender, code and other options."""
    return request.remote.blockwise_key, request.code, request.get_cache_key(_NOT_IN_TRANSFER_KEY)


def _notification(request: Any, resource: Resource, payload: bytes) -> Notification:
    opt = request.opt
    return Notification(
        resource=resource,
        source=request.remote.hostinfo,
        device_id=_device_of(request),
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
        content_format=uint_or_none(opt.content_format, 16),
        accept=uint_or_none(opt.accept, 16),
        size1=uint_or_none(opt.size1, 31),
        block1=block_text(opt.block1),
        traceparent=traceparent_of(request),
    )
