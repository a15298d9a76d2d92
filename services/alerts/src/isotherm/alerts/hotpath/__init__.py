"""The compiled judging of quiet devices: readings that open and close nothing, a batch at a time (ADR 129).

It takes only what it treats exactly as `engine` does, which defines what is right, and leaves everything else to it. It
may import `engine`, and must not know Kafka, Faust or the settings.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from isotherm.servicekit import logs

if TYPE_CHECKING:
    from isotherm.alerts.hotpath.compiled import QuietDevices

_log = logs.logger(__name__)


def quiet_devices() -> type[QuietDevices] | None:
    """Return the compiled table of quiet devices; None when it is not built, or switched off.

    Without it, or with ISOTHERM_PURE_PYTHON in the environment, the engine judges every reading.
    """
    if os.environ.get("ISOTHERM_PURE_PYTHON"):
        _log.info("readings are not judged in batches", reason="ISOTHERM_PURE_PYTHON is set")
        return None
    try:
        from isotherm.alerts.hotpath.compiled import QuietDevices
    except ImportError as error:
        # Nothing else shows it: an image without the compiled code would only be many times as slow.
        _log.warning("readings are not judged in batches", reason=str(error))
        return None
    _log.info("readings of quiet devices are judged in batches")
    return QuietDevices
