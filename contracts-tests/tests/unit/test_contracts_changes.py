"""Pacts and recordings change only with a reason, which is kept beside them with what changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from isotherm.contracts import __main__ as command
from isotherm.contracts import changes, generate
from isotherm.contracts.harness import Harness
from isotherm.contracts.paths import PACTS, RECORDINGS

FOLDER = PACTS.parent


def test_the_newest_reason_is_of_the_pacts_and_recordings_that_are_committed() -> None:
    says = 'changed by hand, or by a merge: make contracts-update REASON="..."'
    assert changes.newest_digest(FOLDER) == changes.digest(FOLDER), says


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the committed pacts and recordings."""
    for part in (PACTS, RECORDINGS):
        shutil.copytree(part, tmp_path / part.name)
    return tmp_path


def test_a_change_is_told_by_field_and_shows_in_the_digest(folder: Path, harness: Harness) -> None:
    before = changes.of_folder(folder, harness)
    assert changes.between(before, before) == []
    path = folder / "pacts" / "console-cli.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"home-01"', '"house-01"'), encoding="utf-8")
    (line,) = changes.between(before, changes.of_folder(folder, harness))
    assert line.startswith("pacts / console-cli / a device with its place / ")
    assert line.endswith('value / home: "home-01" -> "house-01"')
    assert changes.digest(folder) != changes.newest_digest(folder)
    log = changes.add_entry(folder, "Houses are no homes.", [line])
    assert changes.newest_digest(folder) == changes.digest(folder)
    assert f"## Houses are no homes.\n\n- `{line}`\n" in log.read_text(encoding="utf-8")


def test_a_number_of_a_recording_is_told_by_field(folder: Path, harness: Harness) -> None:
    recorded = changes.of_folder(folder, harness)["recordings"]["mqtt-proxy"]
    changed = {**recorded, "a thermostat's temperature": {**recorded["a thermostat's temperature"], "key": "dev-1"}}
    assert changes.between(recorded, changed) == ['a thermostat\'s temperature / key: "dev-0001" -> "dev-1"']


def test_nothing_is_written_without_a_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(new: Path, _harness: Harness, *, derive: bool) -> None:
        del derive
        for part in (PACTS, RECORDINGS):
            shutil.copytree(part, new / part.name)
        (new / "pacts" / "console-cli.json").unlink()

    monkeypatch.setattr(generate, "make", make)
    monkeypatch.setattr(generate, "PACTS", folder / "pacts")
    monkeypatch.setattr(generate, "RECORDINGS", folder / "recordings")
    monkeypatch.setattr(generate, "DOCS", folder)
    before = changes.digest(folder)
    assert command.main(["update"]) == 1
    assert "pacts / console-cli / " in (told := capsys.readouterr().err)
    assert "say why" in told
    assert changes.digest(folder) == before
    assert command.main(["update", "--reason", "The console reads no devices."]) == 0
    assert not (folder / "pacts" / "console-cli.json").exists()
    assert changes.newest_digest(folder) == changes.digest(folder)
