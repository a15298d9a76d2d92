"""The connector class of this service, for a distributed worker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version

from isotherm.coap_ingest.connectors.connector_keys import DEFINITION
from isotherm.coap_ingest.connectors.plan import plan_for
from isotherm.coap_ingest.settings import CoapIngestSettings
from isotherm.connector.config.definitions import Definition
from isotherm.connector.config.files import ConnectorConfig
from isotherm.connector.config.validation import validate
from isotherm.connector.distributed.controller import TaskPlan, task_plan

VERSION = version("isotherm-coap-ingest")


class CoapClasses:
    """The one class of this service; a connector has one task, which observes all of its resources."""

    definitions: Sequence[Definition] = (DEFINITION,)
    version = VERSION

    def __init__(self, settings: CoapIngestSettings) -> None:
        self._settings = settings

    def check(self, config: ConnectorConfig) -> TaskPlan:
        """Check a configuration without asking any server, and return its tasks. Raises ConfigError."""
        resolved = config.resolved(os.environ)
        plan_for(resolved, self._settings)
        return task_plan(validate(DEFINITION, resolved), 1)
