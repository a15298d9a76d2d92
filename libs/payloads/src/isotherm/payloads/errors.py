"""The errors of this package."""


class PayloadError(ValueError):
    """The bytes, or a row in them, cannot become a reading: a bad record, for ever. `reason` is for a dead letter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class IdentityError(PayloadError):
    """A row names another device than the one that its sender is bound to."""
