from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from isotherm.cli.reconciliation.report import Identity, ReconciliationReport
from isotherm.demo.reconciliation import (
    Published,
    alerts_line,
    coap_line,
    dead_letters_line,
    mqtt_lines,
    newest,
    queue_line,
    store_line,
    windows_line,
)

identities = st.tuples(st.sampled_from("abcdef"), st.integers(0, 30))
identity_sets = st.frozensets(identities, max_size=40)
qos_levels = st.dictionaries(identities, st.sampled_from([0, 1, 2]), min_size=1, max_size=40)


@given(qos_by_identity=qos_levels, data=st.data())
def test_a_run_that_kept_every_promise_adds_up(qos_by_identity: dict[Identity, int], data: st.DataObject) -> None:
    acknowledged = data.draw(st.sets(st.sampled_from(sorted(qos_by_identity))))
    stored: Counter[Identity] = Counter()
    for identity, qos in qos_by_identity.items():
        if qos and identity in acknowledged:
            stored[identity] = 1 if qos == 2 else data.draw(st.integers(1, 3))
        elif data.draw(st.booleans()):
            stored[identity] = 1

    lines = mqtt_lines(Published(qos_by_identity, acknowledged), stored)

    assert ReconciliationReport(lines).problems == ()
    assert sum(line.figures["published"] for line in lines) == len(qos_by_identity)
    assert sum(line.figures["stored"] + line.figures["extra copies"] for line in lines) == stored.total()


@given(qos_by_identity=qos_levels, data=st.data())
def test_one_lost_acknowledged_reading_is_named(qos_by_identity: dict[Identity, int], data: st.DataObject) -> None:
    lost = data.draw(st.sampled_from(sorted(qos_by_identity)))
    stored = Counter(set(qos_by_identity) - {lost})

    report = ReconciliationReport(mqtt_lines(Published(qos_by_identity, set(qos_by_identity)), stored))

    assert report.adds_up is (qos_by_identity[lost] == 0)
    if not report.adds_up:
        (problem,) = report.problems
        assert problem == (f"MQTT QoS {qos_by_identity[lost]}: 1 acknowledged but not stored: {lost[0]}/{lost[1]}")


@given(qos_by_identity=qos_levels, data=st.data())
def test_a_second_copy_is_allowed_at_qos_1_only(qos_by_identity: dict[Identity, int], data: st.DataObject) -> None:
    doubled = data.draw(st.sampled_from(sorted(qos_by_identity)))
    stored = Counter(qos_by_identity.keys()) + Counter([doubled])

    lines = mqtt_lines(Published(qos_by_identity, set(qos_by_identity)), stored)

    assert ReconciliationReport(lines).adds_up is (qos_by_identity[doubled] == 1)
    assert sum(line.figures["extra copies"] for line in lines) == 1


def test_readings_of_others_are_no_part_of_the_fleet_s_lines() -> None:
    lines = mqtt_lines(Published({("mine",): 2}, {("mine",)}), Counter([("mine",), ("someone else's",)]))

    assert [dict(line.figures) for line in lines] == [
        {"published": 1, "acknowledged": 1, "stored": 1, "extra copies": 0, "missing": 0}
    ]


def test_lost_notifications_are_counted_and_allowed() -> None:
    line = coap_line({(1,), (2,), (3,)}, Counter([(1,), (3,), (3,)]), Counter([(1,), (3,)]))

    assert line.adds_up
    assert line.figures == {"published": 3, "stored": 2, "extra copies": 1, "missing": 1, "in one topic only": 0}


def test_notification_that_was_never_sent_is_named() -> None:
    assert coap_line({(1,)}, Counter([(1,), (9,)]), Counter([(1,), (9,)])).problems == ("1 stored but never sent: 9",)


def test_a_notification_that_a_kill_left_in_one_topic_only_is_counted_and_allowed() -> None:
    line = coap_line({(1,), (2,)}, Counter([(1,), (2,)]), Counter([(1,)]))

    assert line.adds_up
    assert line.figures["in one topic only"] == 1


@given(
    records=st.lists(identities, min_size=10, max_size=60),
    late_share=st.integers(0, 5),
    dead=st.integers(0, 3),
    again=st.booleans(),
    off=st.integers(-1, 1),
)
def test_windows_late_and_dead_letters_make_up_the_input(
    records: list[Identity], late_share: int, dead: int, again: bool, off: int
) -> None:
    late = Counter(records[:late_share])
    counted = len(records) - late_share - dead + off
    written = late + Counter(late.keys()) if again else late

    line = windows_line("thermostat.data", Counter(records), counted, written, [("t", 0, n) for n in range(dead)])

    copies = late.keys() if again else ()
    allowed = sum(1 for identity in copies if written[identity] <= Counter(records)[identity])
    # A copy of an identity that the input has more than once cannot be told from the other record.
    assert line.adds_up is (off + allowed == 0)


def test_late_reading_that_was_never_in_the_topic_is_named() -> None:
    line = windows_line("t", Counter([("a", 1)]), 1, Counter([("b", 2)]), [])

    assert line.problems == ("1 late readings that the topic does not have: b/2",)


@given(expected=identity_sets, lost=identity_sets, extra=identity_sets)
def test_store_adds_up_exactly_when_it_has_each_identity_once(
    expected: frozenset[Identity], lost: frozenset[Identity], extra: frozenset[Identity]
) -> None:
    rows = (expected - lost) | extra

    line = store_line("rows", expected, Counter(rows))

    assert line.adds_up is (rows == expected)
    assert line.figures["missing"] == len(expected - rows)


def test_identity_that_is_twice_in_a_store_is_named() -> None:
    assert store_line("rows", {("a", 1)}, Counter({("a", 1): 2})).problems == ("1 more than once: a/1",)


@given(records=st.lists(identities, max_size=30), items=st.lists(identities, max_size=30))
def test_queue_adds_up_exactly_when_it_has_each_record_as_often_as_the_topic(
    records: list[Identity], items: list[Identity]
) -> None:
    line = queue_line("queue", Counter(records), Counter(items))

    assert line.adds_up is (Counter(records) == Counter(items))


def test_unexpected_dead_letters_name_their_topic() -> None:
    assert dead_letters_line({"a.dead-letters": 2, "b.dead-letters": 1}, {"b.dead-letters": 1}).problems == (
        "2 in a.dead-letters, expected 0",
    )


def test_only_dead_letters_that_are_still_expected_may_come() -> None:
    assert dead_letters_line({}, {"a.dead-letters": 1}).may_change
    assert not dead_letters_line({"a.dead-letters": 2}, {"a.dead-letters": 1}).may_change


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.integers(0, 50), st.integers(0, 9))))
def test_newest_is_one_reading_of_each_metric_that_none_is_newer_than(readings: list[Identity]) -> None:
    found = newest(readings)

    assert len({place[:2] for place in found}) == len(found) == len({reading[:2] for reading in readings})
    for device, metric, time_ms in found:
        assert time_ms == max(reading[2] for reading in readings if reading[:2] == (device, metric))  # type: ignore[type-var]  # whole numbers


def test_alert_that_opens_closes_and_is_repeated_identically_adds_up() -> None:
    line = alerts_line("alerts", {("a", "opened"): Counter({b"1": 3}), ("a", "closed"): Counter([b"2"])})

    assert line.adds_up
    assert line.figures == {"opened": 1, "closed": 1, "extra copies": 2}


def test_alert_that_never_opened_or_differs_from_its_repeat_is_named() -> None:
    line = alerts_line("alerts", {("a", "closed"): Counter([b"1"]), ("b", "opened"): Counter([b"1", b"2"])})

    assert line.problems == ("1 closed that never opened: a", "1 repeated with other contents: b/opened")
