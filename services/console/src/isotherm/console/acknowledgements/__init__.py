"""Compares what services have acknowledged to devices (`isotherm.attestations`) with the records of the topics.

`seen` and `check` are pure; what they find is a finding of `reconciliation`.
"""
