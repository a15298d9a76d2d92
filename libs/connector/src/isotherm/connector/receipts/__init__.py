"""Receipts: signed digests of the readings of an hour, by which anybody can check a store without Kafka (ADR 272)."""
