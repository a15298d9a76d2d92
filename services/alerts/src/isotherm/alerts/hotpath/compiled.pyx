# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Quiet devices in C: readings that open and close nothing are judged and taken into account here (ADR 129).

The rule engine defines what is right. This module takes only readings for which it does exactly what the engine does.
"""

cimport cython

include "readings.pxi"
include "rhythm.pxi"
include "rows.pxi"
include "records.pxi"
include "texts.pxi"
include "state_records.pxi"
include "table.pxi"

cdef enum:
    QUIET, STALE, ENGINE, UNREAD
    MAX_SCHEMAS = 64
    LOG_APPEND_TIME = 1        # Kafka's number for a timestamp of the broker


@cython.final
cdef class QuietDevices(QuietTable):
    """The quiet devices of one partition.

    `reorder_ms` is how long a reading out of sequence waits; `bounds_of(device_id, metric)` returns the QuietBounds of a
    metric, None when the engine needs every reading.
    """

    cdef object _bounds_of
    cdef int64_t _batch
    cdef uint32_t[MAX_SCHEMAS] _schemas
    cdef int _schema_count
    cdef Writer _writer
    cdef readonly int64_t clock_ms
    cdef readonly Py_ssize_t quiet, stale, late

    def __init__(self, int64_t reorder_ms, bounds_of):
        self._bounds_of = bounds_of
        self._writer = Writer()

    def add_schema(self, uint32_t schema_id):
        """Read the records of one more schema, whose fields are those of SensorReading; others go to the decoder."""
        if not self._is_known(schema_id) and self._schema_count < MAX_SCHEMAS:
            self._schemas[self._schema_count] = schema_id
            self._schema_count += 1

    cdef inline bint _is_known(self, uint32_t schema_id) noexcept:
        cdef int index
        for index in range(self._schema_count):
            if self._schemas[index] == schema_id:
                return True
        return False

    def judge(
        self,
        records,
        Py_ssize_t begin,
        *,
        int64_t clock_ms,
        int64_t other_clocks_ms,
        int64_t now_ms,
        int64_t delay_ms,
        int64_t max_skew_ms,
        bint uses_append_time,
    ):
        """Judge records from `begin` on; return those for the engine, and where the next call begins.

        A record for the engine is its index and the clock of its topic before it. The engine must have all of them before
        the next call. The clock begins at `clock_ms`; `other_clocks_ms` is that of the slowest other topic.
        """
        cdef list engine = []
        cdef Py_ssize_t index, end = len(records)
        cdef int64_t before_ms
        cdef int verdict = QUIET
        self._batch += 1
        self.quiet = self.stale = self.late = 0
        self.clock_ms = clock_ms
        for index in range(begin, end):
            before_ms = self.clock_ms
            verdict = self._judge_record(
                records[index], other_clocks_ms, now_ms, delay_ms, max_skew_ms, uses_append_time
            )
            if verdict == QUIET:
                self.quiet += 1
            elif verdict == STALE:
                self.stale += 1
            else:
                engine.append((index, before_ms))
            if verdict == UNREAD:
                # Only the decoder can tell the time of this record, which those behind it need.
                return engine, index + 1
        return engine, end

    cdef int _judge_record(
        self,
        record,
        int64_t other_clocks_ms,
        int64_t now_ms,
        int64_t delay_ms,
        int64_t max_skew_ms,
        bint uses_append_time,
    ) except -1:
        cdef Reading reading
        cdef Bytes at
        cdef Py_ssize_t length
        cdef int64_t time_ms
        cdef bint is_appended, is_late
        cdef int verdict
        value = record.value
        if type(value) is not bytes:
            return UNREAD
        at, length = <Bytes>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        if length <= WIRE_HEADER or at[0] or not self._is_known(at[1] << 24 | at[2] << 16 | at[3] << 8 | at[4]):
            return UNREAD
        if not read_reading(at + WIRE_HEADER, at + length, &reading):
            return UNREAD
        time_ms = reading.ingest_ms
        is_appended = uses_append_time and record.timestamp_type == LOG_APPEND_TIME
        if is_appended:
            time_ms = record.timestamp
        is_late = is_appended and time_ms > reading.ingest_ms + delay_ms
        time_ms = min(time_ms, now_ms)
        if time_ms > self.clock_ms:
            self.clock_ms = time_ms
        verdict = ENGINE
        if reading.event_ms <= reading.ingest_ms + max_skew_ms:
            verdict = self._judge(&reading, min(self.clock_ms, other_clocks_ms) - delay_ms)
        # The engine's path counts its own.
        self.late += is_late and verdict != ENGINE
        return verdict

    cdef int _judge(self, Reading *reading, int64_t advanced_ms) except -1:
        """Judge a reading at a time up to which everything has arrived; take it into account if it is quiet."""
        cdef int32_t row = self._find(reading.device.at, reading.device.length), at
        cdef Device *device
        cdef Metric *metric
        if row == ABSENT:
            return ENGINE
        device = &self._devices[row]
        if device.batch == self._batch:
            return ENGINE
        at = device.first
        while at != ABSENT and not self._texts.equals(self._metrics[at].name, &reading.metric):
            at = self._metrics[at].next
        # Whatever follows from the device in this batch must follow this reading to the engine.
        device.batch = self._batch
        if at == ABSENT or not (self._metrics[at].plan != ABSENT or self._plan(row)) or device.due_ms <= advanced_ms:
            return ENGINE
        metric = &self._metrics[at]
        if reading.event_ms < metric.event_ms or (
            reading.event_ms == metric.event_ms and reading.sequence <= metric.sequence
        ):
            if is_first_disorder(&metric.rhythm, reading.event_ms):
                return ENGINE
            # A state from before a crash may never have been published.
            self._mark_changed(row)
            device.batch = 0
            return STALE
        if not self._is_quiet(device, metric, reading):
            return ENGINE
        device.batch = 0
        self._apply(row, metric, reading)
        return QUIET

    cdef bint _is_quiet(self, Device *device, Metric *metric, Reading *reading) noexcept:
        """Return whether the engine would release this reading at once, and no rule would open anything."""
        cdef Plan *plan = &self._plans.at[metric.plan]
        cdef int64_t newest_ms = max(metric.newest_ms, reading.event_ms)
        cdef double value = reading.value
        cdef bint is_trusted = metric.rhythm.in_order >= TRUSTED - 1
        if reading.sequence < 0:
            return False
        if reading.sequence != metric.sequence + 1 and not is_trusted and reading.event_ms + self._reorder_ms > newest_ms:
            return False
        if not (plan.low <= value <= plan.high) or not self._texts.equals(metric.unit, &reading.unit):
            return False
        if reading.event_ms > min(device.silent_ms, device.metric_due_ms):
            return False
        if changes_pause(&metric.rhythm, reading.event_ms, reading.event_ms - metric.event_ms):
            return False
        if plan.flat_key != ABSENT and not has_moved(metric, plan, value):
            if <double>(reading.event_ms - metric.since_ms) >= plan.for_ms:
                return False
        return plan.rate_key == ABSENT or not (
            max(
                change_to(&metric.highest, 1.0, reading.event_ms, value, plan.window_ms),
                change_to(&metric.lowest, -1.0, reading.event_ms, value, plan.window_ms),
            )
            > plan.threshold
        )

    cdef int _apply(self, int32_t row, Metric *metric, Reading *reading) except -1:
        cdef Device *device = &self._devices[row]
        cdef Plan *plan = &self._plans.at[metric.plan]
        cdef int64_t at_ms = reading.event_ms
        self._mark_changed(row)
        if plan.flat_key != ABSENT and has_moved(metric, plan, reading.value):
            metric.flat_key, metric.anchor, metric.since_ms = plan.flat_key, reading.value, at_ms
        if plan.rate_key != ABSENT:
            metric.rate_key = plan.rate_key
            add_point(&metric.highest, 1.0, at_ms, reading.value, plan.window_ms)
            add_point(&metric.lowest, -1.0, at_ms, reading.value, plan.window_ms)
        learn_gap(&metric.rhythm, at_ms - metric.event_ms)
        note_newest(&metric.rhythm, at_ms)
        metric.rhythm.lag_ms = max(reading.ingest_ms - at_ms, <int64_t>0)
        metric.trend = trend_after(metric, at_ms, reading.value)
        metric.event_ms, metric.sequence, metric.value = at_ms, reading.sequence, reading.value
        metric.newest_ms = max(metric.newest_ms, at_ms)
        device.last_seen_ms = max(device.last_seen_ms, at_ms)
        device.revision += 1
        self._set_due(row)
        return 0

    cdef bint _plan(self, int32_t row) except -1:
        """Ask for the bounds of a device's metrics; return False when the engine needs its readings."""
        cdef int32_t at = self._devices[row].first, number
        cdef Metric *metric
        cdef Plan *plan
        id = self._devices[row].id[: self._devices[row].length].decode()
        while at != ABSENT:
            name = self._texts.text(self._metrics[at].name)
            bounds = self._bounds_of(id, name)
            try:
                number = ABSENT if bounds is None else self._plans.number(bounds)
            except OverflowError:
                # The key of a rule has no place here: the engine needs the readings.
                number = ABSENT
            metric = &self._metrics[at]
            self._plans.release(metric.plan)
            metric.plan = number
            if number == ABSENT:
                return self._forget_plans(row)
            plan = &self._plans.at[number]
            if metric.flat_key not in (ABSENT, plan.flat_key) or metric.rate_key not in (ABSENT, plan.rate_key):
                # The rule was renamed or removed since the state was stored.
                return self._forget_plans(row)
            at = metric.next
        self._set_due(row)
        return True

    cdef bint _forget_plans(self, int32_t row) except -1:
        cdef int32_t at = self._devices[row].first
        while at != ABSENT:
            self._plans.release(self._metrics[at].plan)
            self._metrics[at].plan = ABSENT
            at = self._metrics[at].next
        return False

    def replan(self, str device_id):
        """Ask for the bounds of a device again: its metadata has changed."""
        cdef bytes id = device_id.encode()
        cdef int32_t row = self._find(<Bytes>PyBytes_AS_STRING(id), PyBytes_GET_SIZE(id))
        if row != ABSENT and not self._plan(row):
            self._devices[row].due_ms = self._next_due_ms = 0

    def pop_due(self, int64_t now_ms):
        """Return the ids of the devices that are due up to `now_ms` (epoch ms). They stay due until they are taken."""
        cdef Py_ssize_t row
        cdef Device *device
        cdef list due = []
        if now_ms < self._next_due_ms:
            return due
        self._next_due_ms = NEVER
        for row in range(self._device_rows):
            device = &self._devices[row]
            if device.id != NULL:
                if device.due_ms <= now_ms:
                    due.append(device.id[: device.length].decode())
                self._next_due_ms = min(self._next_due_ms, device.due_ms)
        return due

    def has_due(self, int64_t now_ms):
        """Return whether a device may be due up to `now_ms` (epoch ms); False is certain."""
        return now_ms >= self._next_due_ms

    def forget_plans(self):
        """Ask for the bounds of each device again before its next reading: the rules are others.

        A silent device gives none. `replan_some` finds out when such devices are due.
        """
        cdef Py_ssize_t row
        self._next_planned = 0
        for row in range(self._device_rows):
            if self._devices[row].id != NULL:
                self._forget_plans(<int32_t>row)

    def replan_some(self, Py_ssize_t limit):
        """Ask for the bounds of the next `limit` devices since `forget_plans`; return how many may be left.

        A device whose readings the engine needs is due at once.
        """
        cdef Py_ssize_t end = min(self._next_planned + limit, self._device_rows)
        cdef Device *device
        while self._next_planned < end:
            device = &self._devices[self._next_planned]
            if device.id != NULL and not self._plan(<int32_t>self._next_planned):
                self._devices[self._next_planned].due_ms = self._next_due_ms = 0
            self._next_planned += 1
        return max(self._device_rows - self._next_planned, 0)

    def checkpoint(self, Py_ssize_t limit, bytes latest_header, int64_t now_ms):
        """Return id, changelog value and DeviceState of at most `limit` devices of the running checkpoint, each once.

        `latest_header` comes before a DeviceState, `now_ms` is when it is made.
        """
        cdef list records = []
        cdef int32_t row
        cdef Device *device
        while self._begun.length and len(records) < limit:
            self._begun.length -= 1
            row = self._begun.at[self._begun.length]
            device = &self._devices[row]
            if device.changed_in:
                device.changed_in = 0
                self._changed_devices -= 1
                records.append((device.id[: device.length], self._value(row), self._latest(row, latest_header, now_ms)))
        return records

    def value(self, bytes device_id):
        """Return the changelog value of a device; None without it."""
        cdef int32_t row = self._find(<Bytes>PyBytes_AS_STRING(device_id), PyBytes_GET_SIZE(device_id))
        return None if row == ABSENT else self._value(row)

    cdef bytes _value(self, int32_t row):
        cdef Device *device = &self._devices[row]
        cdef Metric *metric
        cdef Writer out = self._writer
        cdef int32_t at = device.first
        cdef int count = 0
        while at != ABSENT:
            count += 1
            at = self._metrics[at].next
        out.put_big(device.revision)
        out.put_big(min(device.due_ms, NEVER))
        out.put_byte(COMPACT)
        out.put_little(device.last_seen_ms, 8)
        out.put_byte(<unsigned char>count)
        at = device.first
        while at != ABSENT:
            metric = &self._metrics[at]
            put_metric(out, metric, self._texts)
            at = metric.next
        return out.take()

    cdef bytes _latest(self, int32_t row, bytes header, int64_t now_ms):
        """Return the DeviceState (version 2) of a device."""
        cdef Device *device = &self._devices[row]
        cdef Metric *metric
        cdef Writer out = self._writer
        cdef int32_t at = device.first
        cdef list rows = []
        while at != ABSENT:
            rows.append((self._texts.text(self._metrics[at].name), at))
            at = self._metrics[at].next
        rows.sort()
        out.put(PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header))
        out.put_avro_text(device.id, device.length)
        out.put_long(max(device.last_seen_ms, 0))
        out.put_long(len(rows))
        for _name, at in rows:
            metric = &self._metrics[at]
            put_latest(out, metric, self._texts)
        # The end of the map, and no open alerts.
        out.put_byte(0)
        out.put_byte(0)
        out.put_long(now_ms)
        return out.take()

    def restore(self, bytes device_id, bytes value):
        """Take a value of the changelog unless a newer one is here; return False for a value in another form."""
        cdef Bytes id = <Bytes>PyBytes_AS_STRING(device_id), at = <Bytes>PyBytes_AS_STRING(value)
        cdef Bytes end = at + PyBytes_GET_SIZE(value)
        cdef int32_t row
        cdef int64_t revision
        if end - at <= CHANGELOG_HEADER or at[CHANGELOG_HEADER] != COMPACT:
            return False
        revision = big_at(at)
        row = self._find(id, PyBytes_GET_SIZE(device_id))
        if row != ABSENT:
            if self._devices[row].revision >= revision:
                # Compaction keeps the last record, so the newest state must be written again behind an older one.
                self._devices[row].needs_rewrite = self._value(row) != value
                return True
            self._remove_device(row)
        row = self._add_device(id, PyBytes_GET_SIZE(device_id))
        try:
            if not self._parse(row, at, end):
                self._remove_device(row)
                return False
        except (OverflowError, UnicodeDecodeError):
            # The pure decoder has a place for any text, and refuses other bytes.
            self._remove_device(row)
            return False
        except BaseException:
            self._remove_device(row)
            raise
        return True

    cdef bint _parse(self, int32_t row, Bytes at, Bytes end) except -1:
        cdef int64_t count, number
        cdef Device *device = &self._devices[row]
        device.revision, device.due_ms = big_at(at), big_at(at + 8)
        self._next_due_ms = min(self._next_due_ms, device.due_ms)
        at = get_little(at + CHANGELOG_HEADER + 1, end, 8, &device.last_seen_ms)
        at = get_little(at, end, 1, &count)
        if at == NULL or not count:
            return False
        for number in range(count):
            at = get_metric(at, end, &self._metrics[self._add_metric(row)], self._texts)
            if at == NULL:
                return False
        return at == end

    def remove(self, bytes device_id):
        """Remove a device; return whether it was here."""
        cdef int32_t row = self._find(<Bytes>PyBytes_AS_STRING(device_id), PyBytes_GET_SIZE(device_id))
        if row == ABSENT:
            return False
        self._remove_device(row)
        return True

    def __contains__(self, str device_id):
        cdef bytes id = device_id.encode()
        return self._find(<Bytes>PyBytes_AS_STRING(id), PyBytes_GET_SIZE(id)) != ABSENT

    def pop_rewrites(self):
        """Return id and value of every device whose last record in the changelog is not its newest state, once each."""
        cdef Py_ssize_t row
        cdef list rewrites = []
        for row in range(self._device_rows):
            if self._devices[row].id != NULL and self._devices[row].needs_rewrite:
                self._devices[row].needs_rewrite = False
                rewrites.append((self._devices[row].id[: self._devices[row].length].decode(), self._value(<int32_t>row)))
        return rewrites
