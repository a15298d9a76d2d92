"""Whether most publishes come from devices that do not wait for an answer (ADR 0099). No Kafka, no clock."""

from __future__ import annotations

import math

LONGEST_WAIT_S = 0.04
"""How long a publish waits for others, while most publishes come from devices that wait for no answer."""
_RATE_OVER_S = 1.0
"""The rates of publishes are those of about the last so many seconds."""
_FEWEST_GATHERED = 0.5
"""So many publishes must come during the longest wait, on average, for a stream to be gathered."""
ENOUGH = 250
"""So many publishes do not wait for more: what each of them still costs hardly shrinks."""


class PublishPatience:
    """Tells a stream of devices that publish now and then from clients that wait for each answer.

    A device whose last publish was answered longer ago than the longest wait does not wait for that answer: its publish
    is patient. Times are seconds of one monotonic clock.
    """

    def __init__(self, longest_s: float = LONGEST_WAIT_S) -> None:
        self.longest_s = longest_s
        """How long a publish of a stream may wait for others."""
        self._patient_per_s = self._eager_per_s = 0.0
        self._rates_at_s = 0.0

    def note(self, now_s: float, since_answer_s: float) -> None:
        """Note that a client publishes so many seconds after its last answer, infinite if it never had one."""
        fading = math.exp((self._rates_at_s - now_s) / _RATE_OVER_S)
        self._rates_at_s = now_s
        self._patient_per_s *= fading
        self._eager_per_s *= fading
        if since_answer_s > self.longest_s:
            self._patient_per_s += 1 / _RATE_OVER_S
        else:
            self._eager_per_s += 1 / _RATE_OVER_S

    @property
    def is_stream(self) -> bool:
        """Whether most publishes are patient, and so many that a wait gathers some, and not more than `ENOUGH`."""
        gathered = self._patient_per_s * self.longest_s
        return _FEWEST_GATHERED <= gathered <= ENOUGH and self._patient_per_s >= self._eager_per_s
