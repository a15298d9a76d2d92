# Plain publishes whose records are in flight, and the delivery reports of all of them, settled together after each poll.


from isotherm.mqtt_proxy.metrics import LATENCY_BOUNDS_S
from isotherm.mqtt_proxy.protocol.ack_queue import SUCCESS

cdef enum:
    MAX_BUCKETS = 32

cdef object _SUCCESS = SUCCESS


@cython.final
@cython.freelist(1024)
cdef class PlainPublish:
    """A publish whose records are in flight. It stands in the queue of PUBACKs (`protocol.ack_queue.PendingAck`).

    The producer took `produced` of its `records`, and did not report `left` of these. `failed` is the last error.
    """

    cdef readonly int packet_id
    cdef public bint is_complete
    cdef public object reason
    cdef public int copies
    cdef int qos
    cdef Py_ssize_t records, produced, left
    cdef bint is_doubtful
    cdef object failed
    cdef PlainPublishes owner
    cdef TopicPlan plan
    cdef bytes payload
    cdef Py_ssize_t size
    cdef double started_s
    cdef unsigned char *block         # of the records that a DirectProducer has
    cdef Py_ssize_t unreported        # of these

    def __cinit__(self):
        self.block, self.unreported = NULL, 0

    def __dealloc__(self):
        # librdkafka reads and reports records until its end, even when everybody has forgotten them.
        if not self.unreported:
            free(self.block)

    def __call__(self, error, message):
        """Take the delivery report of one record."""
        if error is None:
            on_stored = self.owner._producer.on_stored
            if message is not None and on_stored is not None:
                on_stored(message)
            self.decide(None)
        else:
            # The producer may try the record once more.
            self.is_doubtful = True
            self.owner.report_failed(self, error, message)

    def decide(self, error):
        """Take what became of one record in the end; None when Kafka has it."""
        if error is not None:
            self.failed, self.is_doubtful = error, True
        self.left -= 1
        if not self.left:
            if self.is_doubtful:
                self.owner.decide_doubtful(self)
            else:
                self.owner._reports.add(self)


@cython.final
cdef class DeliveryReports:
    """Delivery reports of the plain publishes of all connections of a process, settled together after each poll.

    All connections together remember topics in at most `most_plan_bytes`.
    """

    cdef object _gate, _metrics, _producer, _clock
    cdef object _runs_of
    cdef dict _stored
    cdef list _acknowledging
    cdef Qos2Packets _qos2            # shared, because one read is handled at a time
    cdef Records _encoded             # and one publish
    cdef Py_ssize_t _records, _bytes
    cdef Py_ssize_t _most_plan_bytes
    cdef Py_ssize_t _plan_bytes       # of the topics that all connections remember
    cdef double _now_s, _latency_sum_s
    cdef Py_ssize_t[MAX_BUCKETS] _latencies
    cdef double[MAX_BUCKETS] _bounds_s
    cdef int _buckets

    def __init__(self, pipeline, Py_ssize_t most_plan_bytes):
        self._most_plan_bytes = most_plan_bytes
        self._gate, self._metrics = pipeline.gate, pipeline.metrics
        self._producer, self._clock = pipeline.producer, pipeline.clock
        self._runs_of = pipeline.runs_of
        self._stored, self._acknowledging = {}, []
        self._qos2 = Qos2Packets()
        self._encoded = Records()
        self._buckets = len(LATENCY_BOUNDS_S)
        if self._buckets >= MAX_BUCKETS:
            raise ValueError("too many buckets")
        for index, bound_s in enumerate(LATENCY_BOUNDS_S):
            self._bounds_s[index] = bound_s
        self._reset()
        self._producer.on_polled = self.settle

    @property
    def plan_bytes(self):
        """Bytes of the topics that all connections remember."""
        return self._plan_bytes

    cdef void _reset(self) noexcept:
        cdef int index
        self._records = self._bytes = 0
        self._latency_sum_s = 0.0
        for index in range(self._buckets + 1):
            self._latencies[index] = 0

    cdef StoredReadings stored(self, str topic):
        cdef StoredReadings found = self._stored.get(topic)
        if found is None:
            found = self._stored[topic] = StoredReadings(topic, self._runs_of(topic))
        return found

    cdef int add(self, PlainPublish publish) except -1:
        """Count a stored publish, and note its PUBACK."""
        cdef int bucket = 0
        cdef double seconds
        if not self._records:
            self._now_s = self._clock()
        self._records += publish.records
        self._bytes += publish.size
        seconds = self._now_s - publish.started_s
        while bucket < self._buckets and self._bounds_s[bucket] < seconds:
            bucket += 1
        self._latencies[bucket] += 1
        self._latency_sum_s += seconds
        if not publish.qos:
            publish.plan.stored.qos0 += publish.records
            return 0
        publish.plan.stored.qos1 += publish.records
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
