"""Repartitions aggregates by device: reads them in the order of writing, and writes them to a topic of the service.

It is needed only when the input is aggregates. It also knows up to which time everything is forwarded. This package may
import `input`, `settings` and `metrics`. It must not know Faust, rules or the state of devices.
"""
