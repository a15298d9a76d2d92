# Encoded records, one behind the other, and their way into librdkafka without confluent-kafka's binding (ADR 230).

from cpython.set cimport PySet_Add, PySet_Discard
from cpython.unicode cimport PyUnicode_AsUTF8, PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc

from confluent_kafka import KafkaError, KafkaException

cdef extern from "record_producer.h":
    ctypedef struct kafka_functions:
        pass
    ctypedef struct record:
        record *next
        void *publish
        int32_t error, partition
        int64_t offset
        Py_ssize_t size, key_at, key_size
    ctypedef struct reports:
        pass
    ctypedef struct record_header:
        const char *name
        Py_ssize_t name_size
        const char *value
        Py_ssize_t size
    const kafka_functions *librdkafka
    reports *claim_reports(const void *rk) noexcept
    record *take_reported(reports *of) noexcept
    int produce_record(
        reports *to, const char *topic, record *produced, const record_header *headers, int count
    ) noexcept

cdef enum:
    MAX_HEADERS = 8
    ALIGNMENT = 8
    QUEUE_FULL = -184

FUNCTIONS = (
    "rd_kafka_produceva",
    "rd_kafka_error_code",
    "rd_kafka_error_is_fatal",
    "rd_kafka_error_destroy",
    "rd_kafka_headers_new",
    "rd_kafka_header_add",
    "rd_kafka_headers_destroy",
    "rd_kafka_conf_interceptor_add_on_new",
    "rd_kafka_interceptor_add_on_acknowledgement",
    "rd_kafka_interceptor_add_on_destroy",
)
"""The functions of librdkafka that are called, in the order of `kafka_functions`."""


@cython.final
cdef class Records:
    """Records of one publish, encoded one behind the other; the memory is used again for the next publish."""

    cdef unsigned char *data
    cdef Py_ssize_t used, capacity, count

    def __dealloc__(self):
        free(self.data)

    cdef void clear(self) noexcept:
        self.used = self.count = 0

    cdef record *room(self) except NULL:
        """Return the place of the next record, with room for MAX_RECORD bytes; it moves with the next call."""
        cdef Py_ssize_t least = self.used + <Py_ssize_t>sizeof(record) + MAX_RECORD
        cdef unsigned char *data
        if least > self.capacity:
            least *= 2
            data = <unsigned char *>realloc(self.data, least)
            if data == NULL:
                raise MemoryError
            self.data, self.capacity = data, least
        return <record *>(self.data + self.used)

    cdef void add(self, record *added) noexcept:
        """Keep the record in the room, whose size and key are set."""
        self.used += memory_of(added)
        self.count += 1

    cdef list as_list(self):
        """Return key, value, key, value ..."""
        cdef list found = []
        cdef record *one = <record *>self.data
        cdef Py_ssize_t index
        for index in range(self.count):
            found.append(key_of(one))
            found.append(PyBytes_FromStringAndSize(value_of(one), one.size))
            one = record_behind(one)
        return found

    cdef Py_ssize_t bytes(self, Py_ssize_t each) noexcept:
        """Return the characters of all keys and the bytes of all values, and `each` for every record."""
        cdef record *one = <record *>self.data
        cdef Py_ssize_t index, at, size = each * self.count
        cdef const char *key
        for index in range(self.count):
            key = value_of(one) + one.key_at
            for at in range(one.key_size):
                # Only the first byte of a character.
                size += key[at] & 0xC0 != 0x80
            size += one.size
            one = record_behind(one)
        return size


cdef inline char *value_of(record *one) noexcept:
    return <char *>(one + 1)


cdef inline str key_of(record *one):
    return PyUnicode_DecodeUTF8(value_of(one) + one.key_at, one.key_size, NULL)


cdef inline Py_ssize_t memory_of(record *one) noexcept:
    return (<Py_ssize_t>sizeof(record) + one.size + ALIGNMENT - 1) & ~<Py_ssize_t>(ALIGNMENT - 1)


cdef inline record *record_behind(record *one) noexcept:
    return <record *>(<char *>one + memory_of(one))


class RefusedRecord:
    """What confluent-kafka's message says of a record that Kafka refused, for `LoopProducer.decide_failed`."""

    def __init__(self, topic, key, value, partition):
        self._topic, self._key, self._value, self._partition = topic, key, value, partition

    def topic(self):
        """Return the topic's name."""
        return self._topic

    def key(self):
        """Return the key."""
        return self._key

    def value(self):
        """Return the value."""
        return self._value

    def partition(self):
        """Return the partition that librdkafka chose."""
        return self._partition


def bind(addresses):
    """Let the producers that are made from now on use the functions at `addresses`, in the order of FUNCTIONS."""
    global librdkafka
    cdef void **functions
    if len(addresses) != len(FUNCTIONS) or sizeof(kafka_functions) != len(FUNCTIONS) * sizeof(void *):
        raise ValueError("these are not the functions")
    # For ever: a producer may outlive the next call.
    functions = <void **>malloc(sizeof(kafka_functions))
    if functions == NULL:
        raise MemoryError
    for index, address in enumerate(addresses):
        functions[index] = <void *><uintptr_t>address
    librdkafka = <const kafka_functions *>functions


@cython.final
cdef class DirectProducer:
    """Produces plain publishes with the rd_kafka_t of `producer`, and takes their reports from librdkafka.

    `handle` is the address of the rd_kafka_t. Raises LookupError when librdkafka did not tell this module of it,
    and when another one has it already.
    """

    cdef reports *_reports
    cdef record *_pending
    cdef object _producer      # the owner of the rd_kafka_t, which lives as long
    cdef set _publishes        # those of which librdkafka has records

    def __init__(self, producer, handle):
        self._reports = claim_reports(<void *><uintptr_t>handle) if handle else NULL
        if self._reports == NULL:
            raise LookupError("librdkafka has not told of this producer, or another one uses it")
        self._producer, self._publishes = producer, set()

    cdef int produce(self, PlainPublish publish, list headers, Records records) except? -1:
        """Pass the records of a publish to librdkafka until it refuses one; return 0, or the code of its error."""
        cdef record_header[MAX_HEADERS] header
        cdef TopicPlan plan = publish.plan
        cdef record *one
        cdef const char *topic = PyUnicode_AsUTF8(plan.target)
        cdef Py_ssize_t index, count = len(headers)
        cdef int code = 0
        for index in range(count):
            name, value = headers[index]
            header[index].name = PyUnicode_AsUTF8AndSize(name, &header[index].name_size)
            header[index].value = PyUnicode_AsUTF8AndSize(value, &header[index].size)
        publish.block = <unsigned char *>malloc(records.used)
        if publish.block == NULL:
            raise MemoryError
        memcpy(publish.block, records.data, records.used)
        one = <record *>publish.block
        for index in range(records.count):
            one.publish = <void *>publish
            code = produce_record(self._reports, topic, one, header, <int>count)
            if code:
                break
            publish.produced += 1
            one = record_behind(one)
        publish.unreported = publish.produced
        if publish.produced:
            PySet_Add(self._publishes, publish)
        return code

    def drain(self):
        """Decide about the records that were reported; return how many they were. An exception leaves the others."""
        cdef record *one
        cdef int count = 0
        while True:
            if self._pending == NULL:
                self._pending = take_reported(self._reports)
                if self._pending == NULL:
                    return count
            one, self._pending = self._pending, self._pending.next
            count += 1
            self._report(one)

    cdef int _report(self, record *one) except -1:
        cdef PlainPublish publish = <PlainPublish>one.publish
        cdef TopicPlan plan = publish.plan
        cdef const unsigned char *text
        error = message = None
        if one.error:
            error = KafkaError(one.error)
            value = PyBytes_FromStringAndSize(value_of(one), one.size)
            message = RefusedRecord(plan.target, key_of(one), value, one.partition)
        elif plan.stored.runs is not None and one.offset >= 0:
            text = <const unsigned char *>value_of(one)
            plan.stored.runs.add_record(
                one.partition, one.offset, text + one.key_at, one.key_size, text, one.size
            )
        publish.unreported -= 1
        if not publish.unreported:
            PySet_Discard(self._publishes, publish)
        publish(error, message)
        return 0
