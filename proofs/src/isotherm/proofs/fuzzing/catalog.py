"""All targets by name. Importing this module imports the services; a target's own preparation happens in `make`."""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.proofs.fuzzing.target import Target
from isotherm.proofs.fuzzing.targets import (
    avro,
    coap,
    configuration,
    kcql,
    mqtt,
    payloads,
    proxy_header,
    rest,
    sink_records,
    websocket,
)
from isotherm.proofs.fuzzing.targets.mqtt_compiled import bulk, formats, steps

TARGETS: Mapping[str, Target] = {
    target.name: target
    for family in (
        mqtt,
        formats,
        bulk,
        steps,
        websocket,
        proxy_header,
        coap,
        avro,
        payloads,
        kcql,
        configuration,
        rest,
        sink_records,
    )
    for target in family.TARGETS
}
