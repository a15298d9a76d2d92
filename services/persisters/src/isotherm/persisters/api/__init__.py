"""The types that the task's loop, the projection and the sinks share: records, rows, plans, ownership, the sink.

It imports the libraries only (KCQL, servicekit's schemas), and is imported by every other sub-package. It does not
know how records are read or decoded, how a batch is retried, or which stores there are.
"""
