"""The loop of one task, its writer threads, and what it reports: metrics, log, dead letters.

It imports `api`, `buffers` and `consuming`. It knows a sink only as the interface `api.sink.Sink`, and the projection
only as two functions; the composition root gives it both.
"""
