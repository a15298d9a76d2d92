# The quiet devices of a partition in rows of C: the table by device id, and the states' way in and out.

import os

from isotherm.alerts.engine.device_state import DeviceRuleState, MetricState, RuleState

cdef uint64_t _SEED = int.from_bytes(os.urandom(8), "little")


cdef class QuietTable:
    """The states of the quiet devices of one partition, which come from the engine and go back to it."""

    cdef int64_t _reorder_ms, _next_due_ms
    cdef Device *_devices
    cdef Py_ssize_t _device_rows, _device_capacity, _count
    cdef Metric *_metrics
    cdef Py_ssize_t _metric_rows, _metric_capacity
    cdef int32_t _free_device, _free_metric
    cdef int32_t *_slots
    cdef uint32_t _mask
    cdef Rows _begun           # what the running checkpoint has to write; a row may be there in vain
    cdef Rows _changed         # what the next one has to write
    cdef Py_ssize_t _changed_devices, _next_planned
    cdef readonly int64_t checkpoint_number
    cdef Texts _texts
    cdef Plans _plans

    def __cinit__(self, int64_t reorder_ms, *_more):
        self._reorder_ms = reorder_ms
        self._free_device = self._free_metric = ABSENT
        self._next_due_ms = NEVER
        self._begun = self._changed = Rows(NULL, 0, 0)
        self.checkpoint_number = 0
        self._next_planned = NEVER
        self._texts = Texts()
        self._plans = Plans(self._texts)
        self._grow_slots(1024)

    def __dealloc__(self):
        cdef Py_ssize_t row
        for row in range(self._device_rows):
            free(self._devices[row].id)
        for row in range(self._metric_rows):
            free(self._metrics[row].highest.at)
            free(self._metrics[row].lowest.at)
        free(self._devices)
        free(self._metrics)
        free(self._slots)
        free(self._begun.at)
        free(self._changed.at)

    def __len__(self):
        return self._count

    @property
    def changed(self):
        """How many devices have changed since they were written."""
        return self._changed_devices

    @property
    def unwritten(self):
        """At most how many devices the running checkpoint has still to write."""
        return self._begun.length

    def begin_checkpoint(self, int64_t number):
        """Begin the checkpoint `number`, which has to write every device that has changed up to now."""
        cdef Rows begun = self._begun
        self.checkpoint_number = number
        if not begun.length:
            self._begun, self._changed = self._changed, begun
            return
        reserve(
            <void **>&self._begun.at, &self._begun.capacity, begun.length + self._changed.length, sizeof(int32_t)
        )
        memcpy(self._begun.at + self._begun.length, self._changed.at, self._changed.length * sizeof(int32_t))
        self._begun.length += self._changed.length
        self._changed.length = 0

    # The table of devices: open addressing, a removed device leaves no gap.

    cdef int _grow_slots(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t row
        cdef int32_t *slots = <int32_t *>malloc(size * sizeof(int32_t))
        if slots == NULL:
            raise MemoryError
        for row in range(size):
            slots[row] = ABSENT
        free(self._slots)
        self._slots, self._mask = slots, <uint32_t>(size - 1)
        for row in range(self._device_rows):
            if self._devices[row].id != NULL:
                self._place(<int32_t>row)
        return 0

    cdef void _place(self, int32_t row) noexcept:
        cdef uint32_t slot = self._devices[row].hash & self._mask
        while self._slots[slot] != ABSENT:
            slot = (slot + 1) & self._mask
        self._slots[slot] = row

    @cython.final
    cdef inline int32_t _find(self, Bytes id, Py_ssize_t length) noexcept:
        """Return the row of a device, ABSENT without one."""
        cdef uint32_t hash = hash_of(id, length, _SEED), slot = hash & self._mask
        cdef int32_t row = self._slots[slot]
        cdef Device *device
        while row != ABSENT:
            device = &self._devices[row]
            if device.hash == hash and device.length == length and memcmp(device.id, id, length) == 0:
                return row
            slot = (slot + 1) & self._mask
            row = self._slots[slot]
        return ABSENT

    cdef int32_t _add_device(self, Bytes id, Py_ssize_t length) except -2:
        cdef int32_t row = self._free_device
        cdef Device *device
        cdef char *copied = <char *>malloc(length or 1)
        if copied == NULL:
            raise MemoryError
        if row == ABSENT:
            try:
                reserve(<void **>&self._devices, &self._device_capacity, self._device_rows + 1, sizeof(Device))
            except MemoryError:
                free(copied)
                raise
            row = <int32_t>self._device_rows
            self._device_rows += 1
        else:
            self._free_device = self._devices[row].first
        memcpy(copied, id, length)
        device = &self._devices[row]
        device.id, device.length, device.hash = copied, <int32_t>length, hash_of(id, length, _SEED)
        device.first = ABSENT
        device.changed_in = 0
        device.needs_rewrite = False
        device.due_ms = NEVER
        device.batch = 0
        self._count += 1
        if 2 * self._count > self._mask:
            self._grow_slots(2 * (<Py_ssize_t>self._mask + 1))
        else:
            self._place(row)
        return row

    cdef void _remove_device(self, int32_t row) noexcept:
        cdef Device *device = &self._devices[row]
        cdef uint32_t slot = device.hash & self._mask, gap, home
        cdef int32_t metric = device.first, following
        while self._slots[slot] != row:
            slot = (slot + 1) & self._mask
        gap = slot
        while True:
            slot = (slot + 1) & self._mask
            if self._slots[slot] == ABSENT:
                break
            home = self._devices[self._slots[slot]].hash & self._mask
            # An entry fills the gap unless its own place lies behind it.
            if ((slot - home) & self._mask) >= ((slot - gap) & self._mask):
                self._slots[gap] = self._slots[slot]
                gap = slot
        self._slots[gap] = ABSENT
        while metric != ABSENT:
            following = self._metrics[metric].next
            self._remove_metric(metric)
            metric = following
        free(device.id)
        device.id = NULL
        device.first, self._free_device = self._free_device, row
        self._changed_devices -= device.changed_in != 0
        device.changed_in = 0
        self._count -= 1

    cdef int32_t _add_metric(self, int32_t row) except -2:
        """Add a metric behind those that the device has."""
        cdef int32_t added = self._free_metric
        cdef int32_t *link = &self._devices[row].first
        cdef Metric *metric
        if added == ABSENT:
            reserve(<void **>&self._metrics, &self._metric_capacity, self._metric_rows + 1, sizeof(Metric))
            added = <int32_t>self._metric_rows
            self._metric_rows += 1
        else:
            self._free_metric = self._metrics[added].next
        metric = &self._metrics[added]
        metric.next = metric.plan = metric.name = metric.unit = metric.flat_key = metric.rate_key = ABSENT
        metric.highest = metric.lowest = Points(NULL, 0, 0)
        while link[0] != ABSENT:
            link = &self._metrics[link[0]].next
        link[0] = added
        return added

    cdef void _remove_metric(self, int32_t at) noexcept:
        cdef Metric *metric = &self._metrics[at]
        free(metric.highest.at)
        free(metric.lowest.at)
        metric.highest = metric.lowest = Points(NULL, 0, 0)
        self._plans.release(metric.plan)
        metric.next, self._free_metric = self._free_metric, at

    @cython.final
    cdef inline int _mark_changed(self, int32_t row) except -1:
        if not self._devices[row].changed_in:
            append_row(&self._changed, row)
            self._changed_devices += 1
            self._devices[row].changed_in = self.checkpoint_number + 1
        return 0

    # States come from the engine and go back to it.

    def put(self, str device_id, state, bounds, *, int64_t changed_in):
        """Take over the state of a quiet device with the bounds of each metric; return False when it has no place here.

        `changed_in` is the number of the checkpoint that must write it, 0 when none must.
        """
        cdef bytes id = device_id.encode()
        cdef Bytes at = <Bytes>PyBytes_AS_STRING(id)
        cdef int32_t row = self._find(at, PyBytes_GET_SIZE(id))
        if row != ABSENT:
            raise ValueError(f"{device_id} is here already")
        if not has_room(state):
            return False
        row = self._add_device(at, PyBytes_GET_SIZE(id))
        try:
            self._devices[row].revision, self._devices[row].last_seen_ms = state.revision, state.last_seen_ms
            for (name, metric), of_metric in zip(state.metrics.items(), bounds, strict=True):
                self._fill(&self._metrics[self._add_metric(row)], name, metric, of_metric, state.rules)
        except OverflowError:
            self._remove_device(row)
            return False
        except BaseException:
            self._remove_device(row)
            raise
        self._set_due(row)
        if changed_in:
            append_row(&self._begun if changed_in <= self.checkpoint_number else &self._changed, row)
            self._changed_devices += 1
            self._devices[row].changed_in = changed_in
        return True

    cdef int _fill(self, Metric *metric, str name, state, of_metric, dict rules) except -1:
        metric.name, metric.unit = self._texts.number(name.encode()), self._texts.number(state.unit.encode())
        metric.event_ms, metric.sequence, metric.value = state.event_time_ms, state.sequence, state.value
        metric.newest_ms = state.newest_ms
        self._fill_rhythm(&metric.rhythm, state)
        metric.trend = NAN if state.trend_per_hour is None else state.trend_per_hour
        metric.plan = self._plans.number(of_metric)
        if of_metric.flat is not None and (flat := rules.get(of_metric.flat.key)) is not None:
            metric.flat_key = self._plans.at[metric.plan].flat_key
            metric.anchor, metric.since_ms = flat.anchor, flat.since_ms
        if of_metric.rate is not None and (rate := rules.get(of_metric.rate.key)) is not None:
            metric.rate_key = self._plans.at[metric.plan].rate_key
            for at_ms, value in rate.highest:
                append_point(&metric.highest, at_ms, value)
            for at_ms, value in rate.lowest:
                append_point(&metric.lowest, at_ms, value)
        return 0

    def take(self, str device_id):
        """Hand the state of a device back with the checkpoint that must write it, 0 when none must; None without it."""
        cdef bytes id = device_id.encode()
        cdef int32_t row = self._find(<Bytes>PyBytes_AS_STRING(id), PyBytes_GET_SIZE(id)), at
        cdef Device *device
        cdef Metric *metric
        if row == ABSENT:
            return None
        device = &self._devices[row]
        metrics, rules = {}, {}
        at = device.first
        while at != ABSENT:
            metric = &self._metrics[at]
            metrics[self._texts.text(metric.name)] = MetricState(
                metric.event_ms, metric.sequence, metric.value, self._texts.text(metric.unit), metric.newest_ms,
                metric.rhythm.usual_ms, metric.rhythm.seen,
                trend_per_hour=None if isnan(metric.trend) else metric.trend,
                run=metric.rhythm.run, longest_ms=metric.rhythm.longest_ms,
                pause_ms=metric.rhythm.pause_ms, pause_at_ms=metric.rhythm.pause_at_ms,
                accepted_ms=metric.rhythm.accepted_ms, lag_ms=metric.rhythm.lag_ms, in_order=metric.rhythm.in_order,
                recent=[metric.rhythm.recent[index] for index in range(metric.rhythm.recent_count)],
            )
            if metric.flat_key != ABSENT:
                rules[self._texts.text(metric.flat_key)] = RuleState(since_ms=metric.since_ms, anchor=metric.anchor)
            if metric.rate_key != ABSENT:
                rules[self._texts.text(metric.rate_key)] = RuleState(
                    highest=points_of(&metric.highest), lowest=points_of(&metric.lowest)
                )
            at = metric.next
        found = DeviceRuleState(device.revision, metrics, rules, device.last_seen_ms), device.changed_in
        self._remove_device(row)
        return found

    cdef int _fill_rhythm(self, Rhythm *rhythm, state) except -1:
        rhythm.usual_ms, rhythm.seen, rhythm.run = state.interval_ms, state.intervals_seen, state.run
        rhythm.longest_ms, rhythm.lag_ms, rhythm.in_order = state.longest_ms, state.lag_ms, state.in_order
        rhythm.pause_ms, rhythm.pause_at_ms, rhythm.accepted_ms = state.pause_ms, state.pause_at_ms, state.accepted_ms
        rhythm.recent_count = 0
        for at_ms in state.recent:
            rhythm.recent[rhythm.recent_count] = at_ms
            rhythm.recent_count += 1
        return 0

    # Silence: the only place that knows when a device is silent (engine.silence).

    @cython.final
    cdef void _set_due(self, int32_t row) noexcept:
        """Note when a device with bounds is due without a reading, and after which event times it was silent."""
        cdef Device *device = &self._devices[row]
        cdef Metric *metric = &self._metrics[device.first]
        cdef Plan *plan = &self._plans.at[metric.plan]
        cdef int64_t shortest_ms = NEVER, limit_ms, newest_ms = metric.newest_ms, lag_ms = metric.rhythm.lag_ms
        cdef int64_t configured_ms = <int64_t>(plan.intervals * <double>plan.interval_ms) if plan.has_silence else 0
        device.silent_ms = device.metric_due_ms = device.due_ms = NEVER
        while True:
            if metric.newest_ms > newest_ms:
                newest_ms, lag_ms = metric.newest_ms, metric.rhythm.lag_ms
            limit_ms = NEVER
            if plan.has_silence:
                limit_ms = limit_of(&metric.rhythm, plan.intervals, plan.cautious_intervals, plan.min_ms)
            if limit_ms != NEVER:
                limit_ms = max(limit_ms, configured_ms, self._reorder_ms + 1)
                device.metric_due_ms = min(device.metric_due_ms, metric.newest_ms + limit_ms)
                shortest_ms = min(shortest_ms, limit_ms)
            if metric.next == ABSENT:
                break
            metric = &self._metrics[metric.next]
        if plan.has_silence and plan.interval_ms:
            shortest_ms = max(configured_ms, plan.min_ms, self._reorder_ms + 1)
        if device.last_seen_ms >= 0:
            if shortest_ms != NEVER:
                device.silent_ms = device.last_seen_ms + shortest_ms
                device.due_ms = device.silent_ms + lag_ms
            if plan.forget_ms:
                device.due_ms = min(device.due_ms, device.last_seen_ms + plan.forget_ms + lag_ms)
        self._next_due_ms = min(self._next_due_ms, device.due_ms)
