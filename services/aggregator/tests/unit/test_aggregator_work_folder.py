from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.aggregator.settings import AggregatorSettings
from isotherm.aggregator.spark.work_folder import work_folder
from isotherm.servicekit.settings import SettingsError


def settings(**changes: object) -> AggregatorSettings:
    return AggregatorSettings.model_validate({"checkpoint_dir": "s3a://bucket/c", **changes})


def test_each_epoch_has_its_own_and_deletes_what_earlier_ones_left(tmp_path: Path) -> None:
    given = settings(checkpoint_dir=str(tmp_path))
    (tmp_path / "spark" / "blockmgr-of-an-earlier-release").mkdir(parents=True)
    with work_folder(given, 1) as first:
        first.mkdir()
        with work_folder(given, 2) as second:
            second.mkdir()
            assert not first.exists()
            # The former holder is late: it uses a folder that the next one does not.
            with work_folder(given, 1) as again:
                assert again == first
            assert second.exists()
    assert [path.name for path in (tmp_path / "spark").iterdir()] == ["2"]


def test_a_checkpoint_elsewhere_has_a_new_folder_or_the_one_of_work_dir(tmp_path: Path) -> None:
    with work_folder(settings(), 3) as made:
        assert made.parent.exists()
    assert not made.parent.exists()
    with work_folder(settings(work_dir=tmp_path / "work"), 3) as given:
        assert given == tmp_path / "work" / "spark" / "3"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(SettingsError, match=r"work_dir: .*file.* cannot be used"),
        work_folder(settings(work_dir=tmp_path / "file"), 1),
    ):
        pass
