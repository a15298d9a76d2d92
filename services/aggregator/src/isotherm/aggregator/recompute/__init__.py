"""Corrects published windows with the readings that came too late for them (ADR 0196).

`corrections` holds the pure computation, `recomputation` and `topic_reader` read and write the topics, `automatic` does
it at intervals beside the queries, `service` composes both that and the command `recompute`.
This package may import `spark` and everything below it, and its `service` also `kafka_clients`. It must not know the
running queries or `supervision`.
"""
