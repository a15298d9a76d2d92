# Names, units and keys of rules by number, and the bounds of metrics by number: many devices share them.

cdef enum:
    MAX_TEXTS = 65_536         # devices choose names and units; with more of them the engine keeps the devices


@cython.final
cdef class Texts:
    """The names of metrics, units and keys of rules, each once."""

    cdef dict _numbers
    cdef list _texts, _bytes
    cdef Text *at
    cdef Py_ssize_t _capacity

    def __cinit__(self):
        self._numbers, self._texts, self._bytes = {}, [], []

    def __dealloc__(self):
        free(self.at)

    cdef int32_t number(self, bytes text) except -2:
        """Return the number of a text. Raises OverflowError for one that is too long, or one too many."""
        cdef Py_ssize_t number
        found = self._numbers.get(text)
        if found is not None:
            return found
        number = len(self._texts)
        if number >= MAX_TEXTS or len(text) > MAX_TEXT:
            raise OverflowError("the text has no place")
        decoded = text.decode()
        reserve(<void **>&self.at, &self._capacity, number + 1, sizeof(Text))
        self._texts.append(decoded)
        self._bytes.append(text)
        self._numbers[text] = number
        self.at[number] = Text(<Bytes>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
        return <int32_t>number

    cdef int32_t number_at(self, Text *text) except -2:
        """Return the number of a text that was read; UnicodeDecodeError for other bytes than UTF-8."""
        return self.number(PyBytes_FromStringAndSize(<const char *>text.at, text.length))

    cdef str text(self, int32_t number):
        return self._texts[number]

    cdef inline bint equals(self, int32_t number, Text *text) noexcept:
        cdef Text *known = &self.at[number]
        return known.length == text.length and memcmp(known.at, text.at, text.length) == 0


@cython.final
cdef class Plans:
    """The bounds of metrics (engine.quiet.QuietBounds) in C, each once and only as long as a metric has them."""

    cdef Texts _texts
    cdef dict _numbers, _bounds
    cdef list _free
    cdef Plan *at
    cdef Py_ssize_t _capacity, _rows

    def __cinit__(self, Texts texts):
        self._texts, self._numbers, self._bounds, self._free = texts, {}, {}, []

    def __dealloc__(self):
        free(self.at)

    def __len__(self):
        return len(self._numbers)

    cdef int32_t number(self, bounds) except -2:
        """Return the number of bounds for one more metric, which `release` gives back."""
        cdef int32_t number
        cdef Plan plan
        found = self._numbers.get(bounds)
        if found is not None:
            number = found
            self.at[number].uses += 1
            return number
        self._read(&plan, bounds)
        if self._free:
            number = self._free.pop()
        else:
            reserve(<void **>&self.at, &self._capacity, self._rows + 1, sizeof(Plan))
            number = <int32_t>self._rows
            self._rows += 1
        self.at[number] = plan
        self._numbers[bounds], self._bounds[number] = number, bounds
        return number

    cdef int release(self, int32_t number) except -1:
        if number != ABSENT:
            self.at[number].uses -= 1
            if not self.at[number].uses:
                del self._numbers[self._bounds.pop(number)]
                self._free.append(number)
        return 0

    cdef int _read(self, Plan *plan, bounds) except -1:
        plan.uses = 1
        plan.low, plan.high = bounds.low, bounds.high
        plan.flat_key = plan.rate_key = ABSENT
        if bounds.flat is not None:
            plan.flat_key = self._texts.number(bounds.flat.key.encode())
            plan.tolerance, plan.for_ms = bounds.flat.tolerance, bounds.flat.for_ms
        if bounds.rate is not None:
            plan.rate_key = self._texts.number(bounds.rate.key.encode())
            plan.threshold, plan.window_ms = bounds.rate.threshold, bounds.rate.window_ms
        plan.has_silence = bounds.silence is not None
        if bounds.silence is not None:
            plan.intervals, plan.cautious_intervals, plan.min_ms, plan.interval_ms, _per_metric = bounds.silence
        else:
            plan.interval_ms = 0
        plan.forget_ms = bounds.forget_ms
        return 0


cdef list points_of(Points *points):
    """Return points as the engine has them."""
    return [(points.at[index].at_ms, points.at[index].value) for index in range(points.length)]


cdef bint has_room(state) except -1:
    """Return whether the lists of a state fit into the compact form."""
    return (
        len(state.metrics) <= 255
        and all(len(metric.recent) <= RECENT for metric in state.metrics.values())
        and all(len(rule.highest) <= MAX_POINTS and len(rule.lowest) <= MAX_POINTS for rule in state.rules.values())
    )
