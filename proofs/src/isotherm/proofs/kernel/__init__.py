"""Virtual time, a seeded scheduler, simulated threads and processes, and stand-ins for threading, queue and time.

A run is a function of its seed. Real modules see the stand-ins within `patching.simulated_modules`. It imports nothing
of the suite, and must not know Kafka, services or worlds.
"""
