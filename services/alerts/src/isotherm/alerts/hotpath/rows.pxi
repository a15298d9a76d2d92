# The state of quiet devices in C: one row a device, one a metric of a device, and the values in the window of a rate.

from libc.math cimport NAN, expm1, fabs, floor, fmod, isnan
from libc.stdlib cimport free, malloc, realloc

cdef enum:
    ABSENT = -1
    MAX_POINTS = 64            # of a list; 16 parts of the window need 18

cdef double HOUR_MS = 3_600_000.0          # trend.HOUR_MS
cdef double TIME_CONSTANT_MS = 600_000.0   # trend.TIME_CONSTANT_MS
cdef double PARTS = 16.0                   # conditions._PARTS

cdef struct Point:
    int64_t at_ms
    double value

cdef struct Points:
    Point *at
    int32_t length
    int32_t capacity

cdef struct Metric:
    int32_t next               # of the same device
    int32_t name               # with `unit` and the keys: an index of the texts
    int32_t unit
    int32_t plan               # ABSENT until the bounds are asked for
    int32_t flat_key           # ABSENT while the rule has no state
    int32_t rate_key
    int64_t event_ms
    int64_t sequence
    int64_t newest_ms
    Rhythm rhythm
    double value
    double trend               # NaN while unknown
    double anchor
    int64_t since_ms
    Points highest
    Points lowest

cdef struct Device:
    char *id                   # NULL in a free row
    uint32_t hash
    int32_t length
    int32_t first              # metric
    int64_t changed_in         # the checkpoint that must write it; 0 when none must
    bint needs_rewrite
    int64_t revision
    int64_t last_seen_ms
    int64_t due_ms             # NEVER without a silence
    int64_t silent_ms          # event time after which the device was silent; with bounds only
    int64_t metric_due_ms      # event time after which one of its metrics was silent; with bounds only
    int64_t batch              # of which the engine has taken a reading

cdef struct Rows:
    int32_t *at
    Py_ssize_t length
    Py_ssize_t capacity

cdef struct Plan:
    int32_t uses
    bint has_silence
    int32_t flat_key           # ABSENT without the rule
    int32_t rate_key
    double low
    double high
    double tolerance
    double for_ms
    double threshold
    double window_ms
    double intervals
    double cautious_intervals
    int64_t forget_ms
    int64_t min_ms
    int64_t interval_ms


cdef int reserve(void **array, Py_ssize_t *capacity, Py_ssize_t wanted, size_t size) except -1:
    """Let an array hold `wanted` elements of `size` bytes."""
    cdef Py_ssize_t grown
    cdef void *moved
    if wanted <= capacity[0]:
        return 0
    grown = max(wanted, capacity[0] + capacity[0] // 2, 16)
    moved = realloc(array[0], grown * size)
    if moved == NULL:
        raise MemoryError
    array[0] = moved
    capacity[0] = grown
    return 0


cdef int append_row(Rows *rows, int32_t row) except -1:
    reserve(<void **>&rows.at, &rows.capacity, rows.length + 1, sizeof(int32_t))
    rows.at[rows.length] = row
    rows.length += 1
    return 0


cdef int append_point(Points *points, int64_t at_ms, double value) except -1:
    cdef Py_ssize_t capacity = points.capacity
    if points.length == capacity:
        # Most lists have a few points, and there are millions of them.
        moved = <Point *>realloc(points.at, (capacity + 3) * sizeof(Point))
        if moved == NULL:
            raise MemoryError
        points.at = moved
        points.capacity = <int32_t>(capacity + 3)
    points.at[points.length].at_ms = at_ms
    points.at[points.length].value = value
    points.length += 1
    return 0


cdef inline double part_of(int64_t at_ms, double part_ms) noexcept:
    """Return `at_ms // part_ms` as Python computes it for a float."""
    cdef double time = <double>at_ms, quotient, floored
    if not time:
        return 0.0
    quotient = (time - fmod(time, part_ms)) / part_ms
    floored = floor(quotient)
    return floored + 1.0 if quotient - floored > 0.5 else floored


cdef int add_point(Points *points, double sign, int64_t at_ms, double value, double window_ms) except -1:
    """Keep a value for the changes that end later (conditions._add_point, for one of the two lists)."""
    cdef int32_t dropped = 0
    cdef double part_ms = window_ms / PARTS
    while points.length and sign * points.at[points.length - 1].value <= sign * value:
        points.length -= 1
    if points.length and part_of(points.at[points.length - 1].at_ms, part_ms) == part_of(at_ms, part_ms):
        points.at[points.length - 1].at_ms = at_ms
    else:
        append_point(points, at_ms, value)
    while <double>points.at[dropped].at_ms < <double>at_ms - window_ms:
        dropped += 1
    if dropped:
        points.length -= dropped
        for index in range(points.length):
            points.at[index] = points.at[index + dropped]
    return 0


cdef inline double change_to(Points *points, double sign, int64_t at_ms, double value, double window_ms) noexcept:
    """Return by how much `value` at `at_ms` is beyond the extreme of the window; 0.0 when it is the extreme."""
    cdef int32_t index
    cdef Point *point
    for index in range(points.length):
        point = &points.at[index]
        if sign * point.value <= sign * value:
            return 0.0
        if <double>point.at_ms >= <double>at_ms - window_ms:
            return sign * (point.value - value)
    return 0.0


cdef inline double trend_after(Metric *metric, int64_t at_ms, double value) noexcept:
    """Return the trend after a reading (trend.followed)."""
    cdef int64_t passed_ms = at_ms - metric.event_ms
    cdef double change, weight, followed
    if passed_ms <= 0:
        return metric.trend
    change = (value - metric.value) * HOUR_MS / <double>passed_ms
    weight = -expm1(-<double>passed_ms / TIME_CONSTANT_MS)
    followed = (0.0 if isnan(metric.trend) else metric.trend) * (1.0 - weight) + change * weight
    return followed if isfinite(followed) else NAN


cdef inline uint32_t hash_of(Bytes at, Py_ssize_t length, uint64_t seed) noexcept:
    """Return a hash of bytes with a random seed: devices choose their ids."""
    cdef uint64_t mixed = seed ^ <uint64_t>length, part
    while length >= 8:
        memcpy(&part, at, 8)
        mixed = (mixed ^ part) * <uint64_t>0x9E3779B97F4A7C15
        mixed ^= mixed >> 32
        at += 8
        length -= 8
    part = 0
    memcpy(&part, at, length)
    mixed = (mixed ^ part) * <uint64_t>0x9E3779B97F4A7C15
    mixed ^= mixed >> 29
    mixed *= <uint64_t>0xBF58476D1CE4E5B9
    return <uint32_t>(mixed >> 32)


cdef inline bint has_moved(Metric *metric, Plan *plan, double value) noexcept:
    """Return whether a value is not the one at which a flat line would stand (conditions._evaluate_flat)."""
    return metric.flat_key == ABSENT or fabs(value - metric.anchor) > plan.tolerance
