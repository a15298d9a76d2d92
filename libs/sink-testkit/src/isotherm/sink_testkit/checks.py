"""What every sink must do, one function for each promise; each raises AssertionError if the sink breaks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from isotherm.persisters.task.task_failure import TaskFailedError
from isotherm.sink_testkit.broker import MockBroker
from isotherm.sink_testkit.killed_task import run_killed_after_a_write, run_killed_when
from isotherm.sink_testkit.reading_back import read_back
from isotherm.sink_testkit.records import EVENTS, REVISED, STATES, Held, Sent
from isotherm.sink_testkit.task import PATIENCE_S, Task, wait_until
from isotherm.sink_testkit.trial import BATCH_RECORDS, DEAD_LETTERS, Trial, devices
from isotherm.sink_testkit.under_test import REFUSED_FROM, SinkUnderTest

Check = Callable[[SinkUnderTest, MockBroker], None]

_RETRY = ((".error.policy", "RETRY"), (".max.retries", "2"), DEAD_LETTERS)
_NOT_AVRO = b"\x00\x7f\xff\xff\xffno schema"


def identity(under_test: SinkUnderTest, broker: MockBroker) -> None:
    """A record that comes twice, and a whole topic that is read again, have one effect."""
    trial = Trial(under_test, broker, EVENTS)
    events = [Sent(device, sequence) for sequence in range(12) for device in devices(8)]
    trial.send(*events[:48], *events[:30], *events[48:])
    trial.run()
    trial.check_rows()
    trial.check_counts()
    broker.rewind(trial.connector, trial.topic)
    trial.run()
    trial.check_rows()


def order(under_test: SinkUnderTest, broker: MockBroker) -> None:
    """Of the records of a key the last one of the topic stays, within a batch and from batch to batch."""
    trial = Trial(under_test, broker, STATES)
    trial.send(*(Sent(device, sequence, level=sequence % 7) for sequence in range(60) for device in devices(6)))
    # Neither the number nor the time of a record says which is the last one.
    trial.send(*(Sent(device, 3, level=70) for device in devices(6)))
    trial.run()
    trial.check_rows()
    trial.check_counts()


def revisions(under_test: SinkUnderTest, broker: MockBroker) -> None:
    """Where the schema declares a revision the highest one stays, in whatever order they arrive."""
    trial = Trial(under_test, broker, REVISED)
    trial.send(*(Sent(device, 0, level=revision, revision=revision) for revision in (5, 3) for device in devices(4)))
    with trial.task() as task:
        trial.until_settled(task)
        trial.check_rows()
        for revision in (2, 6):
            trial.send(*(Sent(device, revision, level=revision, revision=revision) for device in devices(4)))
            trial.until_settled(task)
    trial.check_rows()


def poison(under_test: SinkUnderTest, broker: MockBroker) -> None:
    """Each bad record becomes a dead letter with its bytes and a reason, and the rest of its batch is written."""
    trial = Trial(under_test, broker, EVENTS)
    bad: list[tuple[str, bytes]] = [("dev-0", _NOT_AVRO), ("dev-1", b"\x07 no magic")]
    if under_test.refuse_high_levels(trial.target):
        refused = [Sent("dev-0", 900, level=REFUSED_FROM), Sent("dev-0", 901, level=2_000_000_000)]
        bad += [(one.device, trial.value(one)) for one in refused]
    for number, poisoned in enumerate(bad):
        trial.send(*(Sent(device, 10 * number + sequence) for sequence in range(4) for device in devices(4)))
        trial.send_values(poisoned)
    trial.send(*(Sent(device, 700) for device in devices(4)))
    trial.run(*_RETRY)
    trial.check_rows()
    trial.check_counts(dead_lettered=len(bad))
    dead = broker.dead_letters(f"{trial.connector}.dead-letters")
    if Counter(one.value for one in dead) != Counter(value for _, value in bad):
        raise AssertionError(
            f"the dead letters are {[one.value for one in dead]}, and not {[value for _, value in bad]}"
        )
    for one in dead:
        for name in ("stage", "exception.message", "topic", "offset"):
            if not one.headers.get(f"__connect.errors.{name}"):
                raise AssertionError(f"a dead letter has no header __connect.errors.{name}: {sorted(one.headers)}")


def throw(under_test: SinkUnderTest, broker: MockBroker) -> None:
    """Under THROW the task stops at a bad record, with everything before it stored and committed."""
    trial = Trial(under_test, broker, EVENTS)
    is_refusing = under_test.refuse_high_levels(trial.target)
    before = BATCH_RECORDS + 5
    trial.send(*(Sent("dev-0", sequence) for sequence in range(before)))
    trial.send_values(("dev-0", trial.value(Sent("dev-0", 900, level=REFUSED_FROM)) if is_refusing else _NOT_AVRO))
    after = [Sent("dev-0", sequence) for sequence in range(before, before + 5)]
    trial.send_values(*((one.device, trial.value(one)) for one in after))
    task = Task(trial.spec())
    task.consumer.assign_to_task(trial.topic, range(1))
    task.start()
    wait_until("the task stops at the bad record", lambda: task.failure is not None)
    task.stop()
    if not isinstance(task.failure, TaskFailedError):
        raise AssertionError(f"the task ended because of {task.failure!r}") from task.failure
    position = broker.positions(trial.connector, trial.topic)[0]
    if position != before:
        raise AssertionError(f"the task committed offset {position}; the bad record is at {before}")
    lost = {Held(*one[:3]) for one in trial.sent} - set(trial.rows())
    if lost:
        raise AssertionError(f"records before the bad one are not in the store: {sorted(lost)[:5]}")


def accounting(under_test: SinkUnderTest, broker: MockBroker) -> None:
    """Read = written + dead-lettered + skipped + filtered, also over a restart."""
    trial = Trial(under_test, broker, EVENTS)
    noop = ((".error.policy", "NOOP"),)
    trial.send(*(Sent(device, sequence) for sequence in range(10) for device in devices(4)))
    trial.send_values(("dev-1", _NOT_AVRO), ("dev-2", None), ("dev-3", None))
    trial.run(*noop)
    trial.check_counts(skipped=1, filtered=2)
    trial.send_values(("dev-0", _NOT_AVRO))
    trial.send(*(Sent(device, 50) for device in devices(4)))
    trial.run(*noop, DEAD_LETTERS)
    trial.check_counts(skipped=1, filtered=2, dead_lettered=1)
    trial.check_rows()


def outage(under_test: SinkUnderTest, broker: MockBroker) -> None:
    """A store that is away costs time and no record: none is committed, skipped or dead-lettered meanwhile."""
    trial = Trial(under_test, broker, EVENTS)
    keys = ((".error.policy", "NOOP"), DEAD_LETTERS)
    trial.send(*(Sent(device, 0) for device in devices(8)))
    with trial.task(*keys) as task:
        trial.until_settled(task)
        with under_test.outage():
            trial.send(*(Sent(device, sequence) for sequence in range(1, 6) for device in devices(8)))
            task.until("a write is tried again", lambda: task.observer.retries > 0 or trial.is_settled(task))
            if trial.is_settled(task):
                raise AssertionError("records are committed although the store takes none")
        trial.until_settled(task)
        if task.observer.failed_records:
            raise AssertionError(f"good records count as bad: {task.observer.failed_records[0].error!r}")
    trial.check_rows()
    trial.check_counts()


def outage_at_start(under_test: SinkUnderTest, broker: MockBroker) -> None:
    """A task that begins while the store is away waits for it."""
    trial = Trial(under_test, broker, EVENTS)
    trial.send(*(Sent(device, sequence) for sequence in range(5) for device in devices(4)))
    with ExitStack() as tasks:
        with under_test.outage():
            task = tasks.enter_context(trial.task())
            task.until(
                "the sink finds the store away", lambda: task.sink.refused_opens > 0 or task.observer.retries > 0
            )
        trial.until_settled(task)
    trial.check_rows()
    trial.check_counts()


def kill(under_test: SinkUnderTest, broker: MockBroker) -> None:
    """SIGKILL loses nothing and doubles nothing: between a write and its commit, and at any other time."""
    trial = Trial(under_test, broker, EVENTS)
    spec = trial.spec()
    trial.send(*(Sent(device, sequence) for sequence in range(40) for device in devices(4)))
    run_killed_after_a_write(spec)
    first = len(trial.rows())
    trial.send(*(Sent(device, sequence) for sequence in range(40, 80) for device in devices(4)))
    run_killed_when(spec, lambda: len(trial.rows()) > first)
    trial.run()
    trial.check_rows()
    trial.check_counts()


def rebalance(under_test: SinkUnderTest, broker: MockBroker) -> None:
    """A partition that goes to another task and comes back is written as if it had stayed."""
    trial = Trial(under_test, broker, STATES)
    every = devices(8)
    trial.send(*(Sent(device, 0, level=1) for device in every))
    with trial.task() as first:
        trial.until_settled(first)
        _wait(first.consumer.revoke_from_task(trial.topic, [0, 1]).wait(PATIENCE_S))
        with trial.task(number=1, partitions=[0, 1]) as second:
            trial.send(*(Sent(device, 1, level=2) for device in every))
            trial.until_settled(first, second)
            trial.check_rows()
        _wait(first.consumer.assign_to_task(trial.topic, [0, 1]).wait(PATIENCE_S))
        # The same bytes as at first: a sink that remembers them must not take them for known.
        trial.send(*(Sent(device, 0, level=1) for device in every))
        trial.until_settled(first)
    trial.check_rows()
    trial.check_counts()


def lifecycle(under_test: SinkUnderTest, broker: MockBroker) -> None:
    """A sink may be opened twice and closed twice, and closed without being opened; nothing of it changes the store."""
    trial = Trial(under_test, broker, EVENTS)
    trial.send(*(Sent(device, sequence) for sequence in range(3) for device in devices(4)))
    trial.run()
    unopened, opened = (Task(trial.spec(), number) for number in (1, 2))
    try:
        unopened.sink.close()
        opened.sink.open()
        opened.sink.open()
        opened.sink.close()
        opened.sink.close()
    except Exception as error:
        raise AssertionError(f"the sink cannot be opened or closed: {error!r}") from error
    for idle in (unopened, opened):
        idle.consumer.close()
    trial.check_rows()


def _wait(is_done: bool) -> None:
    if not is_done:
        raise AssertionError(f"the task does not rebalance within {PATIENCE_S:g} s")


CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        identity,
        order,
        revisions,
        poison,
        throw,
        accounting,
        outage,
        outage_at_start,
        kill,
        rebalance,
        lifecycle,
        read_back,
    )
}
"""By name."""
