"""Definitions of the services' metrics: name, type, labels, text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


@dataclass(frozen=True)
class Definition:
    """One metric of a service."""

    name: str
    """The name without the suffixes of its samples."""
    kind: str
    """`counter`, `gauge` or `histogram`."""
    labels: tuple[str, ...]
    text: str

    @property
    def samples(self) -> tuple[str, ...]:
        """The names that a query can use."""
        return tuple(f"{self.name}{suffix}" for suffix in _SUFFIXES[self.kind])


def definitions(registry: CollectorRegistry) -> list[Definition]:
    """Every registered metric, in the order of registration.

    Raises ValueError for a type that no dashboard can show.
    """
    # The library reveals label names only of metrics with samples, which a service has none of at its start.
    collectors: Iterable[Collector] = list(registry._collector_to_names)
    found = [definition for collector in collectors for definition in _of(collector)]
    for definition in found:
        if definition.kind not in _SUFFIXES:
            raise ValueError(f"{definition.name}: a {definition.kind} cannot be shown")
    return found


def _of(collector: Collector) -> Iterator[Definition]:
    if isinstance(collector, MetricWrapperBase):
        yield Definition(collector._name, str(collector._type), tuple(collector._labelnames), collector._documentation)
        return
    for family in collector.collect():
        yield Definition(family.name, family.type, _labels(family), family.documentation)


def _labels(family: Metric) -> tuple[str, ...]:
    """A family's declared labels, else those of its samples; `le` is part of every histogram and is left out."""
    declared = getattr(family, "_labelnames", None)
    if declared is not None:
        return tuple(declared)
    return tuple(dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le"))
