"""The command `recompute`: corrects published windows with the readings that came too late for them (ADR 0032).

`corrections` holds the pure computation, `recomputation` reads and writes the topics, `service` composes the command.
This package may import `spark` and everything below it, and its `service` also `kafka_clients`. It must not know the
running queries or `supervision`.
"""
