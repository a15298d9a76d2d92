# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled way of plain publishes: a buffer of packets to records of the producer, and their PUBACKs (ADR 114).

The sans-IO protocol and the translator define what is right. This module takes only what it treats exactly as they do.
"""

cimport cython

include "plain_readings.pxi"
include "topic_plans.pxi"

from confluent_kafka import KafkaException

from isotherm.mqtt_proxy.codec.packets import V5, Publish
from isotherm.mqtt_proxy.ingest.producer_record import RECORD_BYTES, ProducerRecord
from isotherm.mqtt_proxy.metrics import LATENCY_BOUNDS_S
from isotherm.mqtt_proxy.protocol.ack_queue import SUCCESS

cdef enum:
    PUBLISH_QOS0 = 0x30
    PUBLISH_QOS1 = 0x32        # without DUP and RETAIN, which are headers of the record

cdef enum:
    MAX_PLANS = 128            # topics that a connection remembers
    MAX_ALL_PLANS = 100_000    # topics that all connections of a process remember
    MAX_PLAN_BYTES = MAX_PATTERN_BYTES  # of the name of one of these; a longer one is only the newest topic
    MAX_PATTERNS = 8           # of these plans, those that serve all topics that differ in the device alone
    MAX_BUCKETS = 32
    MAX_ACK_BYTES = 1024       # of PUBACKs that are sent as one piece

cdef Py_ssize_t _RECORD_BYTES = RECORD_BYTES
cdef object _SUCCESS = SUCCESS


@cython.final
@cython.freelist(1024)
cdef class PlainPublish:
    """A publish whose record is in flight. It stands in the queue of PUBACKs (`protocol.ack_queue.PendingAck`)."""

    cdef readonly int packet_id
    cdef public bint is_complete
    cdef public object reason
    cdef public int copies
    cdef int qos
    cdef PlainPublishes owner
    cdef TopicPlan plan
    cdef bytes payload
    cdef Py_ssize_t size
    cdef double started_s

    def __call__(self, error, message):
        """Take the delivery report."""
        if error is None:
            self.owner._reports.add(self)
        else:
            self.owner.fail(self, error, message)


@cython.final
cdef class DeliveryReports:
    """Delivery reports of the plain publishes of all connections of a process, settled together after each poll."""

    cdef object _gate, _metrics, _producer, _clock
    cdef dict _stored
    cdef list _acknowledging
    cdef Py_ssize_t _records, _bytes, _plans
    cdef double _now_s, _latency_sum_s
    cdef Py_ssize_t[MAX_BUCKETS] _latencies
    cdef double[MAX_BUCKETS] _bounds_s
    cdef int _buckets

    def __init__(self, pipeline):
        self._gate, self._metrics = pipeline.gate, pipeline.metrics
        self._producer, self._clock = pipeline.producer, pipeline.clock
        self._stored, self._acknowledging = {}, []
        self._buckets = len(LATENCY_BOUNDS_S)
        if self._buckets >= MAX_BUCKETS:
            raise ValueError("too many buckets")
        for index, bound_s in enumerate(LATENCY_BOUNDS_S):
            self._bounds_s[index] = bound_s
        self._reset()
        self._producer.on_polled = self.settle

    cdef void _reset(self) noexcept:
        cdef int index
        self._records = self._bytes = 0
        self._latency_sum_s = 0.0
        for index in range(self._buckets + 1):
            self._latencies[index] = 0

    cdef StoredReadings stored(self, str topic):
        cdef StoredReadings found = self._stored.get(topic)
        if found is None:
            found = self._stored[topic] = StoredReadings(topic)
        return found

    cdef int add(self, PlainPublish publish) except -1:
        """Count a stored publish, and note its PUBACK."""
        cdef int bucket = 0
        cdef double seconds
        if not self._records:
            self._now_s = self._clock()
        self._records += 1
        self._bytes += publish.size
        seconds = self._now_s - publish.started_s
        while bucket < self._buckets and self._bounds_s[bucket] < seconds:
            bucket += 1
        self._latencies[bucket] += 1
        self._latency_sum_s += seconds
        if not publish.qos:
            publish.plan.stored.qos0 += 1
            return 0
        publish.plan.stored.qos1 += 1
        publish.is_complete = True
        if not publish.owner.is_acknowledging:
            publish.owner.is_acknowledging = True
            self._acknowledging.append(publish.owner)
        return 0

    def settle(self):
        """Pass on what was counted since the last call: to the producer, the gate, the metrics and the clients."""
        cdef StoredReadings stored
        cdef PlainPublishes owner
        if not self._records:
            return
        records, size = self._records, self._bytes
        readings = []
        for stored in self._stored.values():
            if stored.qos0:
                readings.append((stored.topic, 0, stored.qos0))
            if stored.qos1:
                readings.append((stored.topic, 1, stored.qos1))
            stored.qos0 = stored.qos1 = 0
        latencies = [self._latencies[index] for index in range(self._buckets + 1)]
        latency_sum_s = self._latency_sum_s
        acknowledging, self._acknowledging = self._acknowledging, []
        self._reset()
        self._producer.count_reported(records)
        self._metrics.count_all_stored(readings, latencies, latency_sum_s)
        self._gate.release(records, size)
        for owner in acknowledging:
            owner.acknowledge()


@cython.final
cdef class PlainPublishes:
    """Takes the plain publishes of one connection from the protocol's bytes, while nothing of it is held.

    `plan_topic` returns the plan of a topic name (bytes), or None when its publishes are not plain or not permitted.
    `headers_of` returns the Kafka headers for a topic and a QoS, and the bytes that they take with each record.
    `undecided` returns how many publishes wait for a transaction. The others are what `Qos1Receiver` works with.
    """

    cdef DeliveryReports _reports
    cdef object _protocol, _pipeline, _producer, _receiver, _acks, _waiting, _access, _acl, _rates, _context
    cdef object _may_publish, _plan_topic, _headers_of, _undecided
    cdef dict _plans
    cdef list _patterns
    cdef bytes _name
    cdef TopicPlan _plan
    cdef Py_ssize_t _receive_maximum
    cdef bint is_acknowledging
    cdef readonly bint has_taken_all    # whether the last `take` left no byte

    def __init__(
        self,
        DeliveryReports reports,
        receiver,
        *,
        protocol,
        access,
        rates,
        receive_maximum,
        may_publish,
        plan_topic,
        headers_of,
        undecided,
    ):
        self._reports, self._receiver, self._protocol = reports, receiver, protocol
        self._pipeline, self._context = receiver.pipeline, receiver.context
        self._producer = self._pipeline.producer
        self._acks, self._waiting = receiver.acks, receiver.acks.waiting
        self._access, self._acl, self._rates = access, access.acl, rates
        self._receive_maximum = receive_maximum
        self._may_publish, self._undecided = may_publish, undecided
        self._plan_topic, self._headers_of = plan_topic, headers_of
        self._plans, self._patterns = {}, []

    @property
    def plans(self):
        """How many topics are remembered."""
        return len(self._plans)

    def close(self):
        """Forget the topics: the connection has ended."""
        self._reports._plans -= len(self._plans)
        self._plans, self._patterns, self._name, self._plan = {}, [], None, None

    cdef TopicPlan _plan_of(self, const char *name, Py_ssize_t length):
        cdef TopicPlan plan
        cdef bytes key = self._name
        if key is not None and PyBytes_GET_SIZE(key) == length and not memcmp(PyBytes_AS_STRING(key), name, length):
            return self._plan
        key = PyBytes_FromStringAndSize(name, length)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._derived(name, length)
            if plan is not None:
                self._name, self._plan = key, plan
                return plan
            plan = self._plan_topic(key)
            if plan is None:
                return None
            plan.stored = self._reports.stored(plan.target)
            if plan.name is not None:
                self._patterns = [plan, *self._patterns[: MAX_PATTERNS - 1]]
            if length <= MAX_PLAN_BYTES and self._reports._plans < MAX_ALL_PLANS:
                if len(self._plans) >= MAX_PLANS:
                    self._reports._plans -= len(self._plans)
                    self._plans.clear()
                self._plans[key] = plan
                self._reports._plans += 1
        self._name, self._plan = key, plan
        return plan

    cdef TopicPlan _derived(self, const char *name, Py_ssize_t length):
        """Return the plan of a topic that a pattern covers; None when there is none, or the client may not publish."""
        cdef TopicPlan pattern
        for pattern in self._patterns:
            if pattern.covers(name, length):
                topic = PyUnicode_DecodeASCII(name, length, NULL)
                if self._acl is not None and not self._may_publish(topic):
                    return None
                return pattern.derive(topic)
        return None

    def take(self):
        """Handle the plain publishes at the head of the received bytes; return how many there were.

        It ends before the first packet that is not a plain publish, or that has to wait. Call `next_event` then.
        """
        cdef bytes data, payload, value
        cdef const unsigned char *start
        cdef const unsigned char *at
        cdef const unsigned char *body
        cdef const unsigned char *end
        cdef const unsigned char *name
        cdef const unsigned char *last
        cdef const char *device
        cdef Py_ssize_t length, taken = 0, size, all_bytes = 0, payload_bytes = 0, qos1 = 0, owed, records_left
        cdef Py_ssize_t bytes_left, undecided, limit, first_at, name_length
        cdef int qos, packet_id
        cdef bint is_v5
        cdef long long ingest_ms, sequence
        cdef double started_s
        cdef TopicPlan plan
        cdef PlainPublish publish
        unread = self._protocol.unread()
        if unread is None:
            return 0
        data, first_at, limit = unread
        start = <const unsigned char *>PyBytes_AS_STRING(data)
        at, last = start + first_at, start + PyBytes_GET_SIZE(data)
        if last - at < 2 or (at[0] != PUBLISH_QOS0 and at[0] != PUBLISH_QOS1):
            return 0
        gate, producer, rates = self._pipeline.gate, self._producer, self._rates
        if gate.is_congested:
            return 0
        if self._access.acl is not self._acl:
            self.close()
            self._acl = self._access.acl
        records_left, bytes_left = gate.left
        records_left = min(records_left, <Py_ssize_t>producer.left)
        is_v5, owed, ingest_ms = self._protocol.version == V5, len(self._waiting), self._context.ingest_ms
        undecided = self._undecided() if is_v5 else 0
        take_sequences = self._pipeline.translator.take_sequences
        sequence, started_s = take_sequences(ingest_ms, 0), self._pipeline.clock()
        produce, append = producer.producer.produce, self._waiting.append
        try:
            while last - at >= 2 and taken < records_left and all_bytes < bytes_left and owed <= self._receive_maximum:
                # 1. The packet: fixed header, topic name, packet identifier, and no properties.
                if at[0] != PUBLISH_QOS0 and at[0] != PUBLISH_QOS1:
                    break
                qos, length, body = at[0] >> 1 & 1, at[1], at + 2
                if length & 0x80:
                    if last - at < 3 or at[2] & 0x80:
                        break
                    length, body = length & 0x7F | at[2] << 7, at + 3
                end = body + length
                if end > last or end - at > limit or length < 2:
                    break
                name_length, name = body[0] << 8 | body[1], body + 2
                body = name + name_length
                if end - body < 2 * qos + is_v5:
                    break
                packet_id = 0
                if qos:
                    packet_id = body[0] << 8 | body[1]
                    body += 2
                    if not packet_id or (is_v5 and owed + undecided >= self._receive_maximum):
                        break
                if is_v5:
                    if body[0]:
                        break
                    body += 1
                # 2. Its record.
                plan = self._plan_of(<const char *>name, name_length)
                if plan is None:
                    break
                device = <const char *>name + plan.device_at if plan.device_at else NULL
                size = plan.device_end - plan.device_at
                value = plan.encoder.encode(<const char *>body, end - body, ingest_ms, sequence + taken, device, size)
                # A publish that is not valid must not be counted as one that waits.
                if value is None or (rates is not None and rates.must_wait()):
                    break
                key = plan.encoder.key
                if qos and plan.headers1 is None:
                    plan.headers1, plan.headers1_bytes = self._headers_of(plan.topic, 1)
                elif not qos and plan.headers0 is None:
                    plan.headers0, plan.headers0_bytes = self._headers_of(plan.topic, 0)
                size = len(key) + PyBytes_GET_SIZE(value) + _RECORD_BYTES + (end - body)
                size += plan.headers1_bytes if qos else plan.headers0_bytes
                # 3. To the producer. What it refuses is tried and decided without this module.
                publish = PlainPublish.__new__(PlainPublish)
                publish.packet_id, publish.qos, publish.copies, publish.reason = packet_id, qos, 1, _SUCCESS
                publish.owner, publish.plan, publish.size, publish.started_s = self, plan, size, started_s
                publish.payload = PyBytes_FromStringAndSize(<const char *>body, end - body)
                try:
                    produce(
                        plan.target,
                        value=value,
                        key=key,
                        headers=plan.headers1 if qos else plan.headers0,
                        on_delivery=publish,
                    )
                except (BufferError, KafkaException):
                    break
                if qos:
                    append(publish)
                    owed += 1
                    qos1 += 1
                if rates is not None:
                    rates.count(end - body)
                taken += 1
                all_bytes += size
                payload_bytes += end - body
                at = end
        finally:
            self.has_taken_all = at == last
            if taken:
                self._protocol.skip(at - start, taken)
                take_sequences(ingest_ms, taken)
                gate.acquire(taken, all_bytes)
                producer.count_produced(taken)
                self._pipeline.metrics.count_received(taken - qos1, qos1, payload_bytes)
        return taken

    cdef int fail(self, PlainPublish publish, error, message) except -1:
        """Leave a publish that Kafka did not store to the receiver."""
        cdef TopicPlan plan = publish.plan
        headers = plan.headers1 if publish.qos else plan.headers0
        self._receiver.decide_failed(
            Publish(plan.topic, publish.payload, publish.qos, packet_id=publish.packet_id),
            ProducerRecord(plan.target, None, None, headers),
            publish if publish.qos else None,
            size=publish.size,
            started_s=publish.started_s,
            error=error,
            message=message,
        )
        return 0

    cdef int acknowledge(self) except -1:
        """Send the PUBACKs at the head of the queue, as `AckQueue.send_complete` does."""
        cdef unsigned char packets[MAX_ACK_BYTES]
        cdef int used = 0
        cdef bint has_sent = False
        cdef PlainPublish publish
        waiting, protocol = self._waiting, self._protocol
        acknowledged = self._pipeline.metrics.acknowledged
        self.is_acknowledging = False
        while waiting and type(waiting[0]) is PlainPublish:
            publish = waiting[0]
            if not publish.is_complete or publish.reason is not _SUCCESS:
                break
            waiting.popleft()
            packets[used], packets[used + 1] = 0x40, 2
            packets[used + 2], packets[used + 3] = publish.packet_id >> 8, publish.packet_id & 0xFF
            used += 4
            has_sent = True
            if used == MAX_ACK_BYTES:
                acknowledged[1] += used // 4
                protocol.send(PyBytes_FromStringAndSize(<char *>packets, used))
                used = 0
        if used:
            acknowledged[1] += used // 4
            protocol.send(PyBytes_FromStringAndSize(<char *>packets, used))
        if has_sent or (waiting and waiting[0].is_complete):
            self._acks.send_complete()
        return 0
