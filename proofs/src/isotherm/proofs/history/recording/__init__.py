"""Writes the history of a run on real servers: topics, stores, groups, counters, and what clients were told.

`demo_run` records a run of the demo; the other modules record one source each and can be used for any run. Records
are decoded here by fastavro, with the writer schemas of the registry, and not by the suite's decoder.
"""
