from hypothesis import given
from hypothesis import strategies as st

from isotherm.cli.plan import (
    ActualSubject,
    ActualTopic,
    DeclaredSubject,
    DeclaredTopic,
    Outcome,
    Step,
    subject_steps,
    topic_steps,
)

V1 = {"type": "record", "name": "R", "fields": []}
V2 = {**V1, "fields": [{"name": "a", "type": "long", "default": 0}]}


def test_missing_topic_is_created_with_its_configuration() -> None:
    step = topic_steps(DeclaredTopic("t", 4, {"retention.ms": "1", "cleanup.policy": "delete"}), None)

    assert str(step) == "created: topic t (4 partitions, cleanup.policy=delete, retention.ms=1)"


def test_topic_with_the_declared_configuration_is_unchanged_whatever_else_it_has() -> None:
    actual = ActualTopic(4, {"retention.ms": "1", "segment.bytes": "7"})

    assert topic_steps(DeclaredTopic("t", 4, {"retention.ms": "1"}), actual).outcome is Outcome.UNCHANGED


def test_changed_configuration_names_key_old_and_new_value() -> None:
    step = topic_steps(DeclaredTopic("t", 1, {"retention.ms": "2"}), ActualTopic(1, {"retention.ms": "1"}))

    assert str(step) == "changed config: topic t (retention.ms: 1 -> 2)"


def test_another_partition_count_is_refused_even_when_the_configuration_differs_too() -> None:
    step = topic_steps(DeclaredTopic("t", 8, {"retention.ms": "2"}), ActualTopic(4, {"retention.ms": "1"}))

    assert step.outcome is Outcome.REFUSED
    assert "has 4 partitions, declared are 8" in step.detail


def test_new_subject_gets_every_version_in_order() -> None:
    steps = list(subject_steps(DeclaredSubject("t-value", [V1, V2]), None))

    assert [(step.outcome, step.version) for step in steps] == [(Outcome.REGISTERED, 1), (Outcome.REGISTERED, 2)]


def test_only_the_missing_version_is_registered() -> None:
    steps = list(subject_steps(DeclaredSubject("t-value", [V1, V2]), ActualSubject("FULL_TRANSITIVE", [True, False])))

    assert [str(step) for step in steps] == ["registered: subject t-value version 2"]


def test_incompatible_version_is_refused_with_subject_version_and_reason() -> None:
    actual = ActualSubject("FULL_TRANSITIVE", [True, False], {2: "field b has no default"})

    steps = list(subject_steps(DeclaredSubject("t-value", [V1, V2]), actual))

    assert [str(step) for step in steps] == ["refused: subject t-value version 2 (field b has no default)"]


def test_weaker_compatibility_is_raised_before_anything_is_registered() -> None:
    steps = list(subject_steps(DeclaredSubject("t-value", [V1, V2]), ActualSubject("NONE", [True, False])))

    assert steps[0] == Step("subject", "t-value", Outcome.CHANGED, "compatibility: NONE -> FULL_TRANSITIVE")
    assert steps[1].version == 2


@given(
    partitions=st.integers(1, 64),
    config=st.dictionaries(st.sampled_from(["retention.ms", "cleanup.policy", "segment.ms"]), st.text(max_size=5)),
    other=st.dictionaries(st.sampled_from(["x", "y"]), st.text(max_size=5)),
)
def test_an_applied_declaration_is_unchanged_afterwards(
    partitions: int, config: dict[str, str], other: dict[str, str]
) -> None:
    applied = ActualTopic(partitions, {**other, **config})

    assert topic_steps(DeclaredTopic("t", partitions, config), applied).outcome is Outcome.UNCHANGED
