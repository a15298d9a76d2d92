# What the publishes to one MQTT topic have in common, and to all topics that differ from it only in their device.

from sys import getsizeof

from isotherm.mqtt_proxy.ingest.headers import TOPIC_HEADER, packet_id_header
from isotherm.mqtt_proxy.ingest.plain_route import PLAIN_TOPIC_BYTES
from isotherm.mqtt_proxy.ingest.producer_record import headers_bytes

cdef enum:
    MAX_PATTERN_BYTES = 256    # isotherm.mqtt_proxy.ingest.plain_route.PLAIN_TOPIC_BYTES
    PLAN_OBJECTS_BYTES = 2_000 # of a plan: the objects beside its texts, with the headers of three QoS

if PLAIN_TOPIC_BYTES != MAX_PATTERN_BYTES:
    raise ImportError("the longest topic of a pattern differs")


cdef class StoredReadings:
    """The readings of one Kafka topic that were stored and not counted yet, by QoS."""

    cdef str topic
    cdef Py_ssize_t qos0, qos1
    cdef AttestedRuns runs             # None where nothing is attested

    def __init__(self, str topic, AttestedRuns runs):
        self.topic, self.runs = topic, runs


cdef class TopicPlan:
    """What the publishes of one connection to one MQTT topic have in common.

    With a `device_span` it is a pattern, too: for all topics that have another device there, as `derive` makes them.
    """

    cdef str topic, target
    cdef bytes name                  # of a pattern, in ASCII
    cdef Py_ssize_t device_at, device_end
    cdef ReadingEncoder encoder
    cdef StoredReadings stored
    cdef list headers                # by QoS; each is made for the first publish of the QoS
    cdef Py_ssize_t[3] headers_bytes

    def __init__(self, str topic, str target, ReadingEncoder encoder, device_span):
        self.topic, self.target, self.encoder = topic, target, encoder
        self.headers = [None, None, None]
        if device_span is not None:
            self.name = topic.encode("ascii")
            self.device_at, self.device_end = device_span

    cdef Py_ssize_t memory(self) except -1:
        """Return the bytes that a connection takes to remember the plan, a little more rather than less."""
        cdef Py_ssize_t name_bytes = len(self.topic.encode())
        # The name is the key, in UTF-8 at the text, and maybe the pattern.
        return PLAN_OBJECTS_BYTES + <Py_ssize_t>getsizeof(self.topic) + 3 * name_bytes + self.encoder.memory()

    cdef bint covers(self, const char *name, Py_ssize_t length):
        """Return whether the name differs from the pattern only in the device, and could be no other kind of name."""
        cdef Py_ssize_t at, tail = PyBytes_GET_SIZE(self.name) - self.device_end
        if length > MAX_PATTERN_BYTES or length <= self.device_at + tail:
            return False
        if memcmp(name, PyBytes_AS_STRING(self.name), self.device_at):
            return False
        if memcmp(name + length - tail, PyBytes_AS_STRING(self.name) + self.device_end, tail):
            return False
        for at in range(self.device_at, length - tail):
            if not 32 < name[at] < 127 or name[at] == 43 or name[at] == 35 or name[at] == 47:  # + # /
                return False
        return True

    cdef TopicPlan derive(self, str topic):
        """Return the plan of another topic that the pattern covers."""
        cdef TopicPlan plan = TopicPlan.__new__(TopicPlan)
        plan.topic, plan.target, plan.encoder, plan.stored = topic, self.target, self.encoder, self.stored
        plan.device_at = self.device_at
        plan.device_end = len(topic) - (PyBytes_GET_SIZE(self.name) - self.device_end)
        plan.headers = [None, None, None]
        for qos, headers in enumerate(self.headers):
            if headers is not None:
                plan.headers[qos] = [(TOPIC_HEADER, topic), *headers[1:]]
                plan.headers_bytes[qos] = self.headers_bytes[qos] + len(topic) - len(self.topic)
        return plan

    cdef list headers_of(self, int qos, int packet_id):
        """Return the headers of a publish; with its packet identifier, if that is not 0."""
        cdef list headers = self.headers[qos]
        return [*headers, packet_id_header(packet_id)] if packet_id else headers

    cdef Py_ssize_t bytes_of(self, int qos, int packet_id) except -1:
        """Return the bytes that these headers take with each record."""
        cdef Py_ssize_t size = self.headers_bytes[qos]
        return size + headers_bytes([packet_id_header(packet_id)]) if packet_id else size
