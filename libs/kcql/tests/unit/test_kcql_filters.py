"""MQTT topic filters by section 4.7 of the standard."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.kcql.filters import matches_filter


@pytest.mark.parametrize(
    ("topic_filter", "topic", "matches"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/B", False),
        ("a/b", "a/b/c", False),
        ("a/b", "a", False),
        ("a/b", "/a/b", False),
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/#", "sports", False),
        ("#", "a", True),
        ("#", "/", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("+", "$SYS", False),
        ("$SYS/#", "$SYS/x", True),
        ("$SYS/+", "$SYS/x", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("+/tennis/#", "sport/tennis", True),
        ("/a/+/b", "/a/1/b", True),
        ("/a/+/b", "/a/1/2/b", False),
        ("a+", "ab", False),
        ("$share/g/a/+", "a/1", True),
        ("$share/g/#", "a/1", True),
        ("$share/g/#", "$SYS/x", False),
        ("$share/g//a", "/a", True),
        ("$share/g", "$share/g", True),
        ("+/#", "a", True),
    ],
)
def test_matching(topic_filter: str, topic: str, matches: bool) -> None:
    assert matches_filter(topic_filter, topic) is matches


LEVELS = st.lists(st.sampled_from(["", "a", "b", "temperature"]), min_size=1, max_size=4)


@given(LEVELS, st.data())
def test_a_topic_matches_itself_and_every_generalisation(levels: list[str], data: st.DataObject) -> None:
    topic = "/".join(levels)
    wild = ["+" if data.draw(st.booleans()) else level for level in levels]
    cut = data.draw(st.integers(0, len(levels)))
    assert matches_filter(topic, topic)
    assert matches_filter("/".join(wild), topic)
    assert matches_filter("/".join([*wild[:cut], "#"]), topic)
    assert not matches_filter("/".join([*wild, "+"]), topic)
