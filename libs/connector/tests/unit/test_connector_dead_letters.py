"""The headers of dead-letter records."""

from __future__ import annotations

from isotherm.connector.errors.dead_letters import PREFIX, dead_letter_headers


def refused() -> ValueError:
    try:
        raise ValueError("cut short")
    except ValueError as error:
        return error


def test_original_headers_come_first_and_connects_follow() -> None:
    headers = dead_letter_headers(
        refused(),
        stage="VALUE_CONVERTER",
        connector="c",
        class_name="isotherm.Sink",
        task=2,
        topic="t",
        partition=3,
        offset=44,
        original=[("mqtt.topic", b"a/b"), ("none", None), ("mqtt.topic", b"again")],
    )
    assert headers[:3] == [("mqtt.topic", b"a/b"), ("none", None), ("mqtt.topic", b"again")]
    ours = dict(headers[3:])
    assert ours[f"{PREFIX}topic"] == b"t"
    assert ours[f"{PREFIX}partition"] == b"3"
    assert ours[f"{PREFIX}offset"] == b"44"
    assert ours[f"{PREFIX}connector.name"] == b"c"
    assert ours[f"{PREFIX}task.id"] == b"2"
    assert ours[f"{PREFIX}stage"] == b"VALUE_CONVERTER"
    assert ours[f"{PREFIX}class.name"] == b"isotherm.Sink"
    assert ours[f"{PREFIX}exception.class.name"] == b"builtins.ValueError"
    assert ours[f"{PREFIX}exception.message"] == b"cut short"
    assert "raise ValueError" in str(ours[f"{PREFIX}exception.stacktrace"])


def test_what_was_never_in_a_topic_has_no_place_in_one() -> None:
    names = [name for name, _ in dead_letter_headers(refused(), stage="TASK_PUT", connector="c", class_name="k")]
    assert f"{PREFIX}topic" not in names
    assert f"{PREFIX}offset" not in names


def test_a_replayed_dead_letter_gets_the_new_reason_only() -> None:
    first = dead_letter_headers(refused(), stage="TASK_PUT", connector="first", class_name="k", original=[("h", b"1")])
    second = dead_letter_headers(refused(), stage="TASK_PUT", connector="second", class_name="k", original=first)
    assert [value for name, value in second if name == f"{PREFIX}connector.name"] == [b"second"]
    assert second[0] == ("h", b"1")


def test_texts_are_bounded() -> None:
    headers = dict(dead_letter_headers(ValueError("x" * 100_000), stage="TASK_PUT", connector="c", class_name="k"))
    assert len(headers[f"{PREFIX}exception.message"] or b"") == 4_000
    assert len(headers[f"{PREFIX}exception.stacktrace"] or b"") <= 16_000
