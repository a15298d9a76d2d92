"""All faults to plant in correct histories, each with the anomaly that has to convict it."""

from __future__ import annotations

from isotherm.proofs.history.seeding import delivery_faults, result_faults
from isotherm.proofs.history.seeding.changeable_history import FAULTS, History

__all__ = ["FAULTS", "History", "delivery_faults", "result_faults"]
