"""The errors of this package."""


class PayloadError(ValueError):
    """The bytes or one of their rows are no valid reading; a retry cannot help. `reason` is for the dead letter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NotNumericError(PayloadError):
    """The payload or its value is a text or bytes, which no reading can hold: its value is a double."""


class IdentityError(PayloadError):
    """A row names another device than the one to which its sender is bound."""
