"""The worker library: connector configuration, error handling, offsets, desired state, and the workers that run tasks.

It may import `isotherm.servicekit`, `isotherm.kcql` and `isotherm.schemas`. It must not know any service, any sink or
source, and no topic that carries readings.
"""
