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
    mqtt_plain,
    mqtt_plain_steps,
    payloads,
    proxy_header,
    rest,
    sink_records,
    websocket,
)

TARGETS: Mapping[str, Target] = {
    target.name: target
    for family in (
        mqtt,
        mqtt_plain,
        mqtt_plain_steps,
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
