# The JSON that most devices send (a number, or an object of scalars without escapes, ASCII, or an array of such objects),
# straight to the Avro records. Whatever else a payload is goes to `isotherm.payloads`, which alone decides what is a
# reading (ADR 114).

include "json_scalars.pxi"

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8

cdef enum:
    DEVICE_ID, METRIC, VALUE, UNIT, EVENT_TIME, SEQUENCE, MEMBERS

cdef enum:
    MAX_NAME = 256             # isotherm.payloads.readings.MAX_NAME_CHARS
    MAX_DEFAULT = 1024         # bytes of a default: 256 characters in UTF-8
    MAX_VALUES = 64            # of one object
    MAX_RECORD = 3 * (MAX_DEFAULT + 10) + 64

cdef struct Reading:
    Value members[6]           # MEMBERS; NOT_PLAIN where the payload has none

include "records.pxi"

FIELDS = ("device_id", "metric", "value", "unit", "event_time", "sequence")


cdef inline unsigned char *put_long(unsigned char *out, int64_t value) noexcept:
    cdef uint64_t zigzag = <uint64_t>value << 1
    while zigzag > 0x7F:
        out[0] = zigzag & 0x7F | 0x80
        zigzag >>= 7
        out += 1
    out[0] = <unsigned char>zigzag
    return out + 1


cdef inline unsigned char *put_text(unsigned char *out, Bytes text, Py_ssize_t length) noexcept:
    out = put_long(out, length)
    memcpy(out, text, length)
    return out + length


cdef inline void set_text(Value *value, bytes text) noexcept:
    value.kind, value.text, value.length = TEXT, <Bytes>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)


cdef inline bint is_text(Value *value, Py_ssize_t shortest) noexcept:
    return value.kind == TEXT and shortest <= value.length <= MAX_NAME


cdef class FieldNames:
    """The names in a payload, each with the one of FIELDS that it stands for."""

    cdef list pairs

    def __init__(self, names):
        self.pairs = [(name.encode(), FIELDS.index(field)) for name, field in names.items()]


cdef class ReadingEncoder:
    """Encodes the plain payloads of one MQTT topic as records of one Kafka topic.

    `header` comes before each record. An array of more than `most_readings` is not plain. A name in the payload that is not in `names` makes it not plain if `is_strict`,
    and is ignored otherwise. The others are defaults, None where there is none. With
    `is_bound` a payload may only name `device_id`. Raises ValueError for a default that is too long.
    """

    cdef bytes _header, _metric, _unit, _device
    cdef list _names
    cdef bint _is_strict, _is_bound
    cdef Py_ssize_t _most_readings

    def __init__(
        self,
        bytes header,
        FieldNames names,
        *,
        bint is_strict,
        str device_id,
        bint is_bound,
        str metric,
        str unit,
        Py_ssize_t most_readings,
    ):
        self._header = header
        self._most_readings = most_readings
        self._names = names.pairs
        self._is_strict, self._is_bound = is_strict, is_bound
        self._device = None if device_id is None else device_id.encode()
        self._metric = None if metric is None else metric.encode()
        self._unit = None if unit is None else unit.encode()
        for text in (self._device, self._metric, self._unit):
            if text is not None and len(text) > MAX_DEFAULT:
                raise ValueError("a default has more than 256 characters")
        if len(header) > 16:
            raise ValueError("the header is no header of the wire format")

    cdef Py_ssize_t memory(self) except -1:
        """Return the bytes of the defaults."""
        return sum([len(text) for text in (self._device, self._metric, self._unit) if text is not None])

    def encode_payload(self, bytes payload, long long ingest_ms, long long sequence):
        """Return key and value of each record; None when the payload is not plain."""
        cdef Records records = Records()
        if not self.encode(
            records, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), ingest_ms, sequence, NULL, 0
        ):
            return None
        found = records.as_list()
        return [*zip(found[::2], found[1::2])]

    cdef int _member(self, Bytes name, Py_ssize_t length):
        cdef bytes known
        for known, member in self._names:
            if PyBytes_GET_SIZE(known) == length and memcmp(PyBytes_AS_STRING(known), name, length) == 0:
                return member
        return MEMBERS

    cdef Bytes _read_object(self, Bytes at, Bytes end, Reading *reading) except? NULL:
        """Read the object whose `{` is before `at`; return what is behind it, NULL when it is not plain."""
        cdef Bytes name, close
        cdef int member, count
        cdef Value value
        for member in range(MEMBERS):
            reading.members[member].kind = NOT_PLAIN
        for count in range(MAX_VALUES):
            at = skip_space(at, end)
            if at >= end or at[0] != 34:
                return NULL
            name = at + 1
            close = end_of_text(name, end)
            if close == NULL:
                return NULL
            at = skip_space(close + 1, end)
            if at >= end or at[0] != 58:
                return NULL
            at = skip_space(at + 1, end)
            if at >= end:
                return NULL
            at = read_value(at, end, &value)
            if at == NULL:
                return NULL
            member = self._member(name, close - name)
            if member == MEMBERS:
                if self._is_strict:
                    return NULL
            elif reading.members[member].kind != NOT_PLAIN:
                return NULL
            else:
                reading.members[member] = value
            at = skip_space(at, end)
            if at >= end:
                return NULL
            if at[0] == 125:
                return at + 1
            if at[0] != 44:
                return NULL
            at += 1
        return NULL

    cdef bint encode(
        self,
        Records records,
        const char *payload,
        Py_ssize_t length,
        int64_t ingest_ms,
        int64_t sequence,
        const char *device,
        Py_ssize_t device_length,
    ) except -1:
        """Make `records` those of a payload; return whether it is plain.

        `sequence` is the number of the first reading; the others follow. `device` is ASCII and stands for the
        `device_id` that was given at first; NULL does not.
        """
        cdef Bytes at = <Bytes>payload, end
        cdef Reading reading
        cdef int member
        end = at + length
        records.clear()
        at = skip_space(at, end)
        if at >= end:
            return False
        if at[0] == 91:
            return self._array(records, at + 1, end, ingest_ms, sequence, <Bytes>device, device_length)
        if at[0] == 123:
            at = self._read_object(at + 1, end, &reading)
        else:
            # A number means {"value": number}.
            for member in range(MEMBERS):
                reading.members[member].kind = NOT_PLAIN
            member = self._member(<Bytes>b"value", 5)
            if member == MEMBERS:
                return False
            at = read_number(at, end, &reading.members[member])
        if at == NULL or skip_space(at, end) != end:
            return False
        return self._record(records, &reading, ingest_ms, sequence, <Bytes>device, device_length)

    cdef bint _array(
        self,
        Records records,
        Bytes at,
        Bytes end,
        int64_t ingest_ms,
        int64_t sequence,
        Bytes device,
        Py_ssize_t device_length,
    ) except -1:
        """Add the records of the array whose `[` is before `at`; False when it, or one of its items, is not plain."""
        cdef Reading reading
        cdef Py_ssize_t count
        for count in range(self._most_readings):
            at = skip_space(at, end)
            if at >= end or at[0] != 123:
                return False
            at = self._read_object(at + 1, end, &reading)
            if at == NULL:
                return False
            if not self._record(records, &reading, ingest_ms, sequence + count, device, device_length):
                return False
            at = skip_space(at, end)
            if at >= end:
                return False
            if at[0] == 93:
                return skip_space(at + 1, end) == end
            if at[0] != 44:
                return False
            at += 1
        return False

    cdef bint _name(self, Reading *reading, Bytes bound, Py_ssize_t bound_length):
        """Check and complete device, metric and unit; return False when one is missing or not plain."""
        cdef Value *device = &reading.members[DEVICE_ID]
        cdef Value *metric = &reading.members[METRIC]
        cdef Value *unit = &reading.members[UNIT]
        if bound == NULL and self._device is not None:
            bound, bound_length = <Bytes>PyBytes_AS_STRING(self._device), PyBytes_GET_SIZE(self._device)
        if device.kind == NOT_PLAIN:
            if bound == NULL:
                return False
            device.kind, device.text, device.length = TEXT, bound, bound_length
        elif not is_text(device, 1):
            return False
        elif self._is_bound and (device.length != bound_length or memcmp(device.text, bound, bound_length)):
            return False
        if metric.kind != NOT_PLAIN:
            # Without a unit in the payload, the settings have that of this metric.
            return is_text(metric, 1) and is_text(unit, 0)
        if self._metric is None:
            return False
        set_text(metric, self._metric)
        if unit.kind != NOT_PLAIN:
            return is_text(unit, 0)
        if self._unit is None:
            return False
        set_text(unit, self._unit)
        return True

    cdef bint _record(
        self,
        Records records,
        Reading *reading,
        int64_t ingest_ms,
        int64_t sequence,
        Bytes device,
        Py_ssize_t device_length,
    ) except -1:
        """Add the record of a reading; return False when the reading is not plain."""
        cdef Value *value = &reading.members[VALUE]
        cdef Value *time = &reading.members[EVENT_TIME]
        cdef Value *number = &reading.members[SEQUENCE]
        cdef int64_t event_ms = ingest_ms
        cdef record *added
        cdef unsigned char *out
        if value.kind == INTEGER:
            value.number = <double>value.integer
        elif value.kind != DOUBLE:
            return False
        if time.kind == INTEGER and 0 <= time.integer < 100_000_000_000_000:
            # The magnitude tells seconds from milliseconds (isotherm.payloads.times).
            event_ms = time.integer * 1000 if time.integer < 100_000_000_000 else time.integer
            sequence = 0
        elif time.kind != NOT_PLAIN:
            return False
        if number.kind == INTEGER and number.integer >= 0:
            sequence = number.integer
        elif number.kind != NOT_PLAIN:
            return False
        if not self._name(reading, device, device_length):
            return False
        added = records.room()
        out = <unsigned char *>value_of(added)
        memcpy(out, PyBytes_AS_STRING(self._header), PyBytes_GET_SIZE(self._header))
        out = put_long(out + PyBytes_GET_SIZE(self._header), reading.members[DEVICE_ID].length)
        # The device is the key, too.
        added.key_at, added.key_size = out - <unsigned char *>value_of(added), reading.members[DEVICE_ID].length
        memcpy(out, reading.members[DEVICE_ID].text, added.key_size)
        out += added.key_size
        out = put_text(out, reading.members[METRIC].text, reading.members[METRIC].length)
        memcpy(out, &value.number, 8)
        out = put_text(out + 8, reading.members[UNIT].text, reading.members[UNIT].length)
        out = put_long(put_long(put_long(out, event_ms), ingest_ms), sequence)
        # No attributes.
        out[0] = 0
        added.size = out + 1 - <unsigned char *>value_of(added)
        records.add(added)
        return True
