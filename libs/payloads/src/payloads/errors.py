"""The one error of this package."""


class PayloadError(ValueError):
    """The bytes, or a row in them, cannot become a reading: a bad record, for ever. `reason` is for a dead letter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
