"""Numbers of windows as expressions of Spark: without copies, percentiles, distinct counts, and the sum of two rows.

Each module computes one of them and merges it. This package may import `windowing`. It must not know settings, topics
or records.
"""
