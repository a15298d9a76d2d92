"""The traces of readings through their windows (ADR 271).

It may import the settings, `servicekit` and `kcql`. It must not know Spark: what is traced is found in the driver,
beside the queries.
"""
