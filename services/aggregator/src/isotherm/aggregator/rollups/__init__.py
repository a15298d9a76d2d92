"""Longer windows that are made of finished, shorter ones, while the service runs (ADR 0200).

`merging` holds the pure computation, `rollup_step` makes the windows of one length, `rollups` does one step after the
other, `service` composes them. This package may import `recompute` and everything below it, and its `service` also
`kafka_clients`. It must not know the running queries or `supervision`.
"""
