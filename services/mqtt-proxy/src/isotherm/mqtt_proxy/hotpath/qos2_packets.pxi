# The plain QoS 2 packets of one read: what they change in the session at once, and what they become together.

from isotherm.mqtt_proxy.delivery.qos2 import Qos2Publishes

cdef enum:
    MAX_QOS2_PACKETS = 1024    # of a read; those behind them wait for the next `take`


cdef inline uint32_t content_crc32(
    const unsigned char *topic, Py_ssize_t topic_length, const unsigned char *payload, Py_ssize_t length
) noexcept:
    """Return what `sessions.store.content_crc32` returns."""
    cdef uint32_t crc = crc32_update(0xFFFFFFFF, topic, topic_length)
    crc = crc32_update(crc, b"\0", 1)
    return crc32_update(crc, payload, length) ^ 0xFFFFFFFF


@cython.final
cdef class Qos2Packets:
    """Takes the QoS 2 PUBLISHes and PUBRELs of a connection, while a read is handled, and passes them on at its end.

    It takes a PUBLISH whose identifier is new, and the PUBREL of a committed one: `Qos2Receiver` decides about others.
    Publishes that no PUBREL separates are passed on together, and PUBRELs that no publish separates, all in their order.
    """

    cdef object _receiver, _protocol
    cdef dict _in_flight, _committed, _crc32_of
    cdef set _releasing
    cdef bint _is_durable
    cdef Py_ssize_t _receive_maximum
    cdef list _groups, _records, _counts, _readings, _released
    cdef str _target
    cdef Py_ssize_t _of_target, _size, _first_at
    cdef double _started_s
    cdef int published, released      # of the group that is open
    cdef unsigned char[4 * MAX_QOS2_PACKETS] _pubrecs
    cdef unsigned char[4 * MAX_QOS2_PACKETS] _pubcomps

    cdef int begin(self, receiver, protocol, Py_ssize_t receive_maximum, double started_s) except -1:
        """Look at the session of a connection; nothing else changes it before `end`."""
        session = receiver.session
        self._receiver, self._protocol, self._receive_maximum = receiver, protocol, receive_maximum
        self._in_flight, self._releasing, self._is_durable = session.in_flight, session.releasing, session.durable
        self._committed = None if session.stored is None else session.stored.committed
        self._started_s = started_s
        self._groups = []
        self.released = 0
        self._begin_publishes()
        return 0

    cdef void _begin_publishes(self):
        self._crc32_of, self._records, self._counts, self._readings = {}, [], [], []
        self._target = None
        self._of_target = self._size = 0
        self.published = 0

    cdef bint is_new(self, packet_id) except -1:
        """Return whether a PUBLISH may use the identifier, and the session allows one more."""
        cdef Py_ssize_t unreleased = len(self._in_flight)
        if self.published == MAX_QOS2_PACKETS or packet_id in self._in_flight or packet_id in self._releasing:
            return False
        if self._committed is not None:
            if packet_id in self._committed:
                return False
            unreleased += len(self._committed)
        return unreleased < self._receive_maximum

    cdef int publish(
        self, int packet_id, uint32_t crc32, str target, list headers, list values, Py_ssize_t size, Py_ssize_t at
    ) except -1:
        """Take a PUBLISH that begins at `at`, with its records (key, value, key, value ...) of `size` bytes."""
        cdef Py_ssize_t index
        if not self.published:
            self._end_releases()
            self._first_at = at
        if target is not self._target:
            self._end_target()
            self._target = target
        number = packet_id
        self._in_flight[number] = self._crc32_of[number] = crc32
        for index in range(0, len(values), 2):
            self._records.append(_new_record(ProducerRecord, (target, values[index], values[index + 1], headers)))
        self._counts.append(len(values) // 2)
        self._of_target += len(values) // 2
        self._size += size
        put_answer(&self._pubrecs[4 * self.published], 0x50, packet_id)
        self.published += 1
        return 0

    cdef bint release(self, int packet_id, bytes data, Py_ssize_t at) except -1:
        """Take a PUBREL that begins at `at` in `data`; return False for one that this object does not decide about."""
        number = packet_id
        if self._committed is None or self.released == MAX_QOS2_PACKETS or number not in self._committed:
            return False
        if number in self._in_flight or number in self._releasing:
            return False
        if not self.released:
            self._end_publishes(data, at)
            self._released = []
        if self._is_durable:
            self._releasing.add(number)
            self._released.append(number)
        else:
            del self._committed[number]
        put_answer(&self._pubcomps[4 * self.released], 0x70, packet_id)
        self.released += 1
        return True

    cdef void _end_target(self):
        if self._of_target:
            self._readings.append((self._target, self._of_target))
            self._of_target = 0

    cdef int _end_publishes(self, bytes data, Py_ssize_t at) except -1:
        """End the group of publishes, whose packets end before `at` in `data`."""
        if self.published:
            self._end_target()
            packets = PyBytes_FromStringAndSize(<char *>self._pubrecs, 4 * self.published)
            self._groups.append(
                Qos2Publishes(
                    data[self._first_at : at],
                    self._crc32_of,
                    self._records,
                    self._counts,
                    self._readings,
                    self._size,
                    packets,
                    self._started_s,
                )
            )
            self._begin_publishes()
        return 0

    cdef int _end_releases(self) except -1:
        """End the group of PUBRELs."""
        if self.released:
            packets = PyBytes_FromStringAndSize(<char *>self._pubcomps, 4 * self.released)
            self._groups.append((self._released, packets))
            self.released = 0
        return 0

    cdef int end(self, bytes data, Py_ssize_t at) except -1:
        """Pass on what was taken; the packets in `data` are handled up to `at`."""
        # One of the two is empty.
        self._end_releases()
        self._end_publishes(data, at)
        for group in self._groups:
            if type(group) is Qos2Publishes:
                self._receiver.publish_together(group)
                continue
            released, packets = group
            if self._is_durable:
                self._receiver.release_together(released, packets)
            else:
                self._protocol.send(packets)
        self._receiver = self._protocol = self._in_flight = self._committed = self._releasing = None
        self._groups = self._crc32_of = self._records = self._counts = self._readings = self._released = None
        return 0


cdef inline void put_answer(unsigned char *out, unsigned char first, int packet_id) noexcept:
    out[0], out[1], out[2], out[3] = first, 2, packet_id >> 8, packet_id & 0xFF


cdef object _new_record = tuple.__new__
