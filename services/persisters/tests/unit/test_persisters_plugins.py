"""Sinks are entry points: what is installed is offered, and what is broken harms nobody else."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest

from isotherm.connector.config.files import ConfigError
from isotherm.persisters.configuration import load
from isotherm.persisters.sinks import catalog
from isotherm.persisters.sinks.catalog import GROUP, installed, installed_sinks, read_entry_points
from isotherm.persisters.sinks.hazelcast import plugin as hazelcast
from isotherm.persisters.sinks.plugin import MissingExtraError, SinkCode

OURS = SimpleNamespace(
    sink=hazelcast.SINK,
    renamed=replace(hazelcast.SINK, name="other"),
    greedy=replace(hazelcast.SINK, name="greedy"),
    nothing="no sink",
)
"""What the entry points of these tests name."""


def point(name: str, attribute: str) -> EntryPoint:
    return EntryPoint(name, f"{__name__}:OURS.{attribute}", GROUP)


def read(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> catalog.Installed:
    # This file is no module that `import` finds.
    def loaded(self: EntryPoint) -> object:
        if self.module == "nowhere":
            raise ModuleNotFoundError("No module named 'nowhere'")
        return getattr(OURS, self.attr.removeprefix("OURS."))

    monkeypatch.setattr(EntryPoint, "load", loaded)
    return read_entry_points(points)


def test_the_sinks_of_this_package_are_entry_points_like_any_other() -> None:
    ours = {one.name for one in entry_points(group=GROUP) if one.value.startswith("isotherm.persisters.")}
    assert ours == {"elasticsearch", "hazelcast", "http", "iceberg", "parquet", "postgresql", "scylla"}
    assert ours <= set(installed_sinks())
    assert installed().problems == []
    assert list(installed_sinks()) == sorted(installed_sinks())


def test_a_broken_plug_in_is_reported_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(
        monkeypatch,
        point("hazelcast", "sink"),
        point("misnamed", "renamed"),
        point("text", "nothing"),
        EntryPoint("gone", "nowhere:SINK", GROUP),
    )
    assert list(found.kinds) == ["hazelcast"]
    assert len(found.problems) == 3
    assert "'gone' of an unknown package cannot be imported: ModuleNotFoundError" in found.problems[0]
    assert "it calls itself 'other'" in found.problems[1]
    assert "no SinkKind but str" in found.problems[2]


def test_two_plug_ins_cannot_answer_to_one_name_or_class(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch, point("hazelcast", "sink"), point("hazelcast", "sink"), point("greedy", "greedy"))
    assert list(found.kinds) == ["greedy"]
    assert any("'greedy' of an unknown package answers to" in problem for problem in found.problems)
    assert len(found.problems) == 2


def test_an_unknown_class_says_which_ones_are_installed(tmp_path: Path) -> None:
    file = tmp_path / "sink.properties"
    file.write_text("name=n\nconnector.class=mongo\ntopics=t\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(None, file, resolve=False)
    (problem,) = caught.value.problems
    assert "'mongo' is no sink that is installed" in problem
    for kind in installed_sinks().values():
        assert f"{kind.definition.klass} ({kind.name})" in problem


def test_a_missing_client_says_what_to_install() -> None:
    def missing() -> SinkCode:
        raise ModuleNotFoundError("No module named 'hazelcast'")

    with pytest.raises(MissingExtraError, match=r"pip install 'isotherm-persisters\[hazelcast\]'"):
        replace(hazelcast.SINK, load_code=missing).load()
    with pytest.raises(MissingExtraError, match=r"needs the extra \(No module"):
        replace(hazelcast.SINK, load_code=missing, requirement="").load()
