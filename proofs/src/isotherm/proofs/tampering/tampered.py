"""What was tampered with, and which findings name it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from isotherm.kcql.dates import epoch_ms

Identity = tuple[str, ...]
WINDOW_FIELDS = ("device_id", "metric", "window_start")


class WindowKey(NamedTuple):
    """Device, metric and start of a window, in epoch milliseconds."""

    device_id: str
    metric: str
    start_ms: int

    @property
    def identity(self) -> Identity:
        """How findings call it."""
        return (self.device_id, self.metric, str(self.start_ms))


class Tampered(NamedTuple):
    """One fault."""

    hop: str
    """The service or connector that should have done otherwise."""
    identity: Identity
    what: str
    kinds: frozenset[str]
    """The kinds of a finding that name it."""
    at_ms: int


@dataclass
class Verdict:
    """How the findings fit the faults."""

    delays_ms: dict[Tampered, int] = field(default_factory=dict)
    """Of each fault that was named: how long after it."""
    healed: list[Tampered] = field(default_factory=list)
    """Faults that the system itself has mended before anybody could see them."""
    unnamed: list[Tampered] = field(default_factory=list)
    misnamed: list[tuple[Tampered, str]] = field(default_factory=list)
    """Faults of which the finding has another kind."""
    false_alarms: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether each fault was named, and nothing else."""
        return not (self.unnamed or self.misnamed or self.false_alarms)


def identities_of(finding: Mapping[str, Any]) -> Iterable[Identity]:
    """Return the identities that a finding names: of a window or its row, or of records at offsets of a topic."""
    identity = finding["identity"]
    if "offset" not in identity:
        yield tuple(identity[name] for name in WINDOW_FIELDS)
        return
    for span in identity["offset"].split(","):
        first, _, last = span.partition("-")
        for offset in range(int(first), int(last or first) + 1):
            yield (identity["topic"], identity["partition"], str(offset))


def judge(
    tampered: Iterable[Tampered], findings: Iterable[Mapping[str, Any]], healed: Iterable[Tampered] = ()
) -> Verdict:
    """Compare the faults with all findings that were ever raised; `healed` need not be among those, but may."""
    verdict, open_ = Verdict(), {(one.hop, one.identity): one for one in tampered}
    named: dict[tuple[str, Identity], Mapping[str, Any]] = {}
    for finding in findings:
        for identity in identities_of(finding):
            if (finding["hop"], identity) not in open_:
                verdict.false_alarms.append(finding)
            else:
                named.setdefault((finding["hop"], identity), finding)
    left = set(healed)
    for key, one in open_.items():
        if key not in named:
            (verdict.healed if one in left else verdict.unnamed).append(one)
        elif named[key]["kind"] not in one.kinds:
            verdict.misnamed.append((one, str(named[key]["kind"])))
        else:
            verdict.delays_ms[one] = epoch_ms(named[key]["found_at"]) - one.at_ms
    return verdict
