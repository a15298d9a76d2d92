"""The folder of this machine for Spark's temporary files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isotherm.aggregator.checkpoint_location import local_folder
from isotherm.aggregator.settings import AggregatorSettings
from isotherm.servicekit.settings import SettingsError


@contextmanager
def work_folder(settings: AggregatorSettings, epoch: int = 0) -> Iterator[Path]:
    """Return a folder that nothing else uses: in `work_dir`, else in a checkpoint on this machine, else a new one.

    Each epoch of the lease has its own, so that a former holder that ends late deletes nothing of the next one. What
    earlier epochs have left is deleted. Raises SettingsError when the folder cannot be made.
    """
    given = settings.work_dir
    folder = given or local_folder(settings.checkpoint_dir)
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="isotherm-aggregator-", ignore_cleanup_errors=True) as made:
            yield Path(made) / "spark"
        return
    spark = folder.absolute() / "spark"
    try:
        spark.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        key = "checkpoint_dir" if given is None else "work_dir"
        raise SettingsError([f"{key}: {str(folder)!r} cannot be used: {error}"]) from error
    for left in spark.iterdir():
        if not left.name.isdigit() or int(left.name) < epoch:
            shutil.rmtree(left, ignore_errors=True)
    yield spark / str(epoch)
