"""Receipts: signed digests of the readings of each hour (ADR 272). Only where a key is configured."""
