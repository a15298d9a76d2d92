"""The life of processes: the supervisor and its links, the start, name conflicts, and the target state.

It may import `sessions`, `ingest`, `codec`, `settings` and `metrics`. It must not know connections or publishes.
"""
