"""The scenario of every provider's messages: two thermostats and one minute of the year 2026."""

from __future__ import annotations

START_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z, the start of a window."""
MEASURED_MS = START_MS + 12_000
TAKEN_IN_MS = MEASURED_MS + 350
WINDOW_MS = 60_000
DEVICE = "dev-0001"
OTHER_DEVICE = "dev|0002"
"""A device id with a character that keys escape."""

READING = "a thermostat's temperature"
LATE = "a reading that came too late"
BRIGHTNESS = "a sensor's brightness"
TEMPERATURE_BY_REGEX = "a temperature under the old regex list"
COAP_READING = "a reading in a CoAP notification"
COAP_TEMPERATURE = "a temperature in a CoAP notification"
COAP_BRIGHTNESS = "a brightness in a CoAP notification"
COAP_MESSAGE = "a CoAP notification as it arrived"
COAP_ANSWER = "a CoAP response that is no notification"
SESSION = "a session between PUBREC and PUBREL"
SESSION_WITH_WILL = "a session of a user, with a will that is due"
DEVICE_KNOWN = "a device with its place"
DEVICE_BOUND = "a device with a threshold of its own"
DEVICE_UNKNOWN = "a device of unknown place"
WINDOW = "a finished window"
WINDOW_ESCAPED = "a finished window of a device with | in its id"
GROUP = "a finished window of a region"
ALERT_OPENED = "an alert that opens"
ALERT_CLOSED = "an alert that closes"
DEVICE_STATE = "the newest state of a thermostat"
HEARTBEAT = "a task's heartbeat"
TASK_FAILED = "the last status of a task that failed"
WORKER = "a distributed worker's own status"
WORKERS_CONNECTOR = "a connector's status that its worker reports"
DEAD_LETTER = "a dead letter"
CONNECTOR = "a connector that a file owns"
PLUGIN = "a connector class"
CREATED = "a connector that the console created"
RESTARTED = "a connector whose task the console restarted"
SERVICE_PAUSED = "a service that the console paused"
