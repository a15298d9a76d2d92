"""The failure of a record that ends the task."""

from __future__ import annotations

from isotherm.persisters.api.record import FailedRecord


class TaskFailedError(Exception):
    """The task cannot continue after `failed` (THROW, or no attempt is left); the cause is the record's error."""

    def __init__(self, failed: FailedRecord) -> None:
        record = failed.record
        super().__init__(f"{record.topic}-{record.partition} at offset {record.offset}: {failed.stage}: {failed.error}")
        self.failed = failed
        self.__cause__ = failed.error
