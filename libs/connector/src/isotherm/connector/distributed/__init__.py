"""Distributed mode: a worker that shares its group's connectors with other workers, one process for each task.

It may import every other folder of this package. It must not know the connector classes that it runs: a service hands
them over as `Classes`.
"""
