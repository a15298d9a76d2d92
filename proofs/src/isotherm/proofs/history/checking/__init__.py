"""Judges a history by the promises: collects its events by key, then asks each anomaly's module.

It reads a history and nothing else. It must not import any package of the suite: what windows and alerts should be is
computed here again from the documents (`docs/explanation/watermarks.md`, `docs/reference/alert-rules.md`).
"""
