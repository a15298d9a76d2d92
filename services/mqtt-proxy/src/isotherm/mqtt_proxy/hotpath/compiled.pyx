# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled way of plain publishes: a buffer of packets to records of the producer, and their PUBACKs (ADR 114).

The sans-IO protocol and the translator define what is right. This module takes only what it treats exactly as they do.
"""

from cpython.object cimport PyObject_Call
from cpython.unicode cimport PyUnicode_DecodeASCII

cimport cython

include "plain_readings.pxi"
include "checksums.pxi"
include "attested_runs.pxi"
include "topic_plans.pxi"
include "delivery_reports.pxi"
include "qos2_packets.pxi"
include "session_skim.pxi"
include "session_encoder.pxi"

from isotherm.mqtt_proxy.codec.packets import V5, Publish
from isotherm.mqtt_proxy.ingest.producer_record import RECORD_BYTES, ProducerRecord

cdef enum:
    PUBLISH_QOS0 = 0x30
    PUBLISH_QOS1 = 0x32        # without DUP and RETAIN, which are headers of the record
    PUBLISH_QOS2 = 0x34
    PUBREL = 0x62

cdef enum:
    MAX_PLANS = 128            # topics that a connection remembers
    MAX_PLAN_BYTES = MAX_PATTERN_BYTES  # of the name of one of these; a longer one is only the newest topic
    MAX_PATTERNS = 8           # of these plans, those that serve all topics that differ in the device alone
    MAX_ACK_BYTES = 1024       # of PUBACKs that are sent as one piece

cdef Py_ssize_t _RECORD_BYTES = RECORD_BYTES


cdef inline bint is_plain(unsigned char first) noexcept:
    return first == PUBLISH_QOS0 or first == PUBLISH_QOS1 or first == PUBLISH_QOS2 or first == PUBREL


@cython.final
cdef class PlainPublishes:
    """Takes the plain publishes and PUBRELs of one connection from the protocol's bytes, while nothing of it is held.

    `plan_topic` returns the plan of a topic name (bytes), or None when its publishes are not plain or not permitted.
    `headers_of` returns the Kafka headers for a topic and a QoS, and the bytes that they take with each record.
    `qos2` is the receiver of QoS 2. The others are what `Qos1Receiver` works with.
    """

    cdef DeliveryReports _reports
    cdef object _protocol, _pipeline, _producer, _receiver, _acks, _waiting, _access, _acl, _rates, _context
    cdef object _qos2, _may_publish, _plan_topic, _headers_of, _refusal
    cdef dict _plans
    cdef list _patterns
    cdef bytes _name
    cdef TopicPlan _plan
    cdef Py_ssize_t _receive_maximum, _plan_bytes    # the latter of `_plans`
    cdef bint is_acknowledging, _with_packet_ids
    cdef readonly bint has_taken_all    # whether the last `take` left no byte

    def __init__(
        self,
        DeliveryReports reports,
        receiver,
        qos2,
        *,
        protocol,
        access,
        rates,
        receive_maximum,
        may_publish,
        plan_topic,
        headers_of,
    ):
        self._reports, self._receiver, self._protocol = reports, receiver, protocol
        self._pipeline, self._context = receiver.pipeline, receiver.context
        self._producer = self._pipeline.producer
        self._acks, self._waiting = receiver.acks, receiver.acks.waiting
        self._access, self._acl, self._rates = access, access.acl, rates
        self._receive_maximum = receive_maximum
        self._may_publish = may_publish
        self._plan_topic, self._headers_of = plan_topic, headers_of
        self._plans, self._patterns, self._qos2 = {}, [], qos2
        self._with_packet_ids = self._pipeline.translator.with_packet_ids

    @property
    def plans(self):
        """How many topics are remembered."""
        return len(self._plans)

    def close(self):
        """Forget the topics: the connection has ended."""
        self._forget_plans()
        self._name = self._plan = None

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
            self._remember(key, plan)
        self._name, self._plan = key, plan
        return plan

    cdef int _remember(self, bytes key, TopicPlan plan) except -1:
        """Keep a plan, if the memory that all connections have for plans allows it."""
        cdef Py_ssize_t memory
        if PyBytes_GET_SIZE(key) > MAX_PLAN_BYTES:
            return 0
        memory = plan.memory()
        if len(self._plans) >= MAX_PLANS:
            self._forget_plans()
        if self._reports._plan_bytes + memory > self._reports._most_plan_bytes:
            if plan.name is not None:
                # A gateway would resolve the topic of each device again. One such plan more for each connection.
                self._patterns = [plan]
            return 0
        if plan.name is not None:
            self._patterns = [plan, *self._patterns[: MAX_PATTERNS - 1]]
        self._plans[key] = plan
        self._plan_bytes += memory
        self._reports._plan_bytes += memory
        return 0

    cdef int _forget_plans(self) except -1:
        self._reports._plan_bytes -= self._plan_bytes
        self._plan_bytes = 0
        self._plans, self._patterns = {}, []
        return 0

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
        """Handle the plain publishes and PUBRELs at the head of the received bytes; return how many there were.

        It ends before the first packet that is not plain, or that has to wait. Call `next_event` then.
        """
        cdef bytes data
        cdef const unsigned char *start
        cdef const unsigned char *at
        cdef const unsigned char *body
        cdef const unsigned char *end
        cdef const unsigned char *name
        cdef const unsigned char *last
        cdef const char *device
        cdef Py_ssize_t length, taken = 0, size, all_bytes = 0, payload_bytes = 0, owed, records_left, bytes_left
        cdef Py_ssize_t undecided, limit, first_at, name_length, readings = 0, produced = 0, records = 0, room
        cdef Py_ssize_t[3] received = [0, 0, 0]
        cdef int qos, packet_id
        cdef bint is_v5, has_qos2 = False
        cdef Py_ssize_t until_root     # publishes, this one included, until one begins a trace; 0: none does
        cdef long long ingest_ms, sequence
        cdef double started_s
        cdef TopicPlan plan
        cdef PlainPublish publish
        cdef Qos2Packets qos2 = self._reports._qos2
        cdef Records encoded = self._reports._encoded
        cdef DirectProducer direct
        unread = self._protocol.unread()
        if unread is None:
            return 0
        data, first_at, limit = unread
        start = <const unsigned char *>PyBytes_AS_STRING(data)
        at, last = start + first_at, start + PyBytes_GET_SIZE(data)
        if last - at < 2 or not is_plain(at[0]):
            return 0
        gate, producer, rates = self._pipeline.gate, self._producer, self._rates
        if gate.is_congested:
            return 0
        if self._access.acl is not self._acl:
            self.close()
            self._acl = self._access.acl
        direct = producer.direct
        traces = self._pipeline.translator.traces
        roots = None if traces is None else traces.roots
        until_root = 0 if roots is None else <Py_ssize_t>roots.left
        records_left, bytes_left = gate.left
        room = producer.left
        is_v5, owed, ingest_ms = self._protocol.version == V5, len(self._waiting), self._context.ingest_ms
        undecided = self._qos2.undecided if is_v5 else 0
        take_sequences = self._pipeline.translator.take_sequences
        sequence, started_s = take_sequences(ingest_ms, 0), self._pipeline.clock()
        append = self._waiting.append
        try:
            while last - at >= 2 and records < records_left and all_bytes < bytes_left and owed <= self._receive_maximum:
                # 1. The packet: fixed header, topic name, packet identifier, and no properties.
                if not is_plain(at[0]):
                    break
                if at[0] >= PUBLISH_QOS2 and not has_qos2:
                    qos2.begin(self._qos2, self._protocol, self._receive_maximum, started_s)
                    has_qos2 = True
                if at[0] == PUBREL:
                    if last - at < 4 or at[1] != 2 or limit < 4 or not qos2.release(
                        at[2] << 8 | at[3], data, at - start
                    ):
                        break
                    taken += 1
                    at += 4
                    continue
                qos, length, body = at[0] >> 1 & 3, at[1], at + 2
                if length & 0x80:
                    if last - at < 3 or at[2] & 0x80:
                        break
                    length, body = length & 0x7F | at[2] << 7, at + 3
                end = body + length
                if end > last or end - at > limit or length < 2:
                    break
                name_length, name = body[0] << 8 | body[1], body + 2
                body = name + name_length
                if end - body < (2 if qos else 0) + is_v5:
                    break
                packet_id = 0
                if qos:
                    packet_id = body[0] << 8 | body[1]
                    body += 2
                    if not packet_id or (qos == 2 and not qos2.is_new(packet_id)):
                        break
                    if qos == 1 and is_v5 and owed + undecided >= self._receive_maximum:
                        break
                if is_v5:
                    if body[0]:
                        break
                    body += 1
                # 2. Its records. The translator begins traces.
                if until_root == 1:
                    break
                plan = self._plan_of(<const char *>name, name_length)
                if plan is None:
                    break
                device = <const char *>name + plan.device_at if plan.device_at else NULL
                size = plan.device_end - plan.device_at
                # A publish that is not valid must not be counted as one that waits. The producer takes all or none.
                if not plan.encoder.encode(
                    encoded, <const char *>body, end - body, ingest_ms, sequence + readings, device, size
                ) or (qos < 2 and produced + encoded.count > room):
                    break
                if rates is not None and rates.must_wait():
                    break
                size = end - body + self._records_bytes(plan, qos, packet_id, encoded)
                # 3. To the producer, which takes all or none: a refused first record is tried without this module.
                if qos == 2:
                    crc32 = content_crc32(name, name_length, body, end - body)
                    headers = plan.headers_of(2, self._header_id(packet_id))
                    qos2.publish(packet_id, crc32, plan.target, headers, encoded.as_list(), size, at - start)
                    records += 1
                    undecided += 1
                else:
                    publish = PlainPublish.__new__(PlainPublish)
                    publish.packet_id, publish.qos, publish.copies, publish.reason = packet_id, qos, 1, _SUCCESS
                    publish.owner, publish.plan, publish.started_s, publish.size = self, plan, started_s, size
                    publish.payload = PyBytes_FromStringAndSize(<const char *>body, end - body)
                    if not self._produce(publish, direct, encoded):
                        break
                    produced += publish.produced
                if qos == 1:
                    append(publish)
                    owed += 1
                if rates is not None:
                    rates.count(end - body)
                received[qos] += 1
                taken += 1
                until_root -= until_root > 0
                readings += encoded.count
                records += encoded.count
                all_bytes += size
                payload_bytes += end - body
                at = end
                if self._refusal is not None:
                    break
        finally:
            self.has_taken_all = at == last
            if taken:
                self._protocol.skip(at - start, taken)
                take_sequences(ingest_ms, readings)
                if roots is not None:
                    roots.left = until_root
                self._pipeline.metrics.count_received((received[0], received[1], received[2]), payload_bytes)
                gate.acquire(records, all_bytes)
                if produced:
                    producer.count_produced(produced)
                if self._refusal is not None:
                    publish.failed, self._refusal = producer.note_refused(self._refusal), None
            if has_qos2:
                qos2.end(data, at - start)
        return taken

    cdef int _header_id(self, int packet_id) noexcept:
        """Return what the headers tell of a packet identifier; 0 for nothing."""
        return packet_id if self._with_packet_ids else 0

    cdef Py_ssize_t _records_bytes(self, TopicPlan plan, int qos, int packet_id, Records encoded) except -1:
        """Return the memory that records take until Kafka has them; make their headers."""
        if plan.headers[qos] is None:
            plan.headers[qos], plan.headers_bytes[qos] = self._headers_of(plan.topic, qos)
        return encoded.bytes(plan.bytes_of(qos, self._header_id(packet_id)) + _RECORD_BYTES)

    cdef bint _produce(self, PlainPublish publish, DirectProducer direct, Records encoded) except -1:
        """Pass the records to the producer; return whether it took the first one.

        As in `LoopProducer.produce_all`, those behind one that it refuses are not tried.
        """
        cdef TopicPlan plan = publish.plan
        cdef list headers = plan.headers_of(publish.qos, self._header_id(publish.packet_id))
        cdef int code
        publish.records = encoded.count
        if direct is not None and len(headers) <= MAX_HEADERS:
            code = direct.produce(publish, headers, encoded)
            failure = None if not code else BufferError() if code == QUEUE_FULL else KafkaException(KafkaError(code))
        else:
            failure = self._pass_on(publish, headers, encoded.as_list())
        if failure is not None:
            if not publish.produced:
                return False
            self._refusal, publish.is_doubtful = failure, True
        publish.left = publish.produced
        return True

    cdef object _pass_on(self, PlainPublish publish, list headers, list values):
        """Pass records (key, value, key, value ...) to confluent-kafka's producer; return what it raised, or None."""
        cdef TopicPlan plan = publish.plan
        cdef dict record
        cdef Py_ssize_t at
        produce, arguments = self._producer.producer.produce, (plan.target,)
        record = {"headers": headers, "on_delivery": publish}
        try:
            for at in range(0, len(values), 2):
                record["key"], record["value"] = values[at], values[at + 1]
                PyObject_Call(produce, arguments, record)
                publish.produced += 1
        except (BufferError, KafkaException) as failure:
            return failure
        return None

    cdef int report_failed(self, PlainPublish publish, error, message) except -1:
        """Let the producer decide about a record that Kafka refused."""
        cdef TopicPlan plan = publish.plan
        headers = plan.headers_of(publish.qos, self._header_id(publish.packet_id))
        self._producer.decide_failed(error, message, headers, publish.decide)
        return 0

    cdef int decide_doubtful(self, PlainPublish publish) except -1:
        """Leave a publish of which Kafka refused a record at first, or in the end, to the receiver."""
        cdef TopicPlan plan = publish.plan
        self._producer.count_reported(publish.produced)
        self._receiver.decide(
            Publish(plan.topic, publish.payload, publish.qos, packet_id=publish.packet_id),
            publish if publish.qos else None,
            publish.failed,
            target=plan.target,
            records=publish.records,
            size=publish.size,
            started_s=publish.started_s,
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
