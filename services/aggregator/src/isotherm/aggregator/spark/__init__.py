"""Spark at work: the session in its JVM, the two streaming queries, their sink and the table of devices.

It turns settings into Spark's options and the functions of `frames` into running queries, and reads their progress.
This package may import `checkpoint`, `kafka`, `metrics`, `frames` and what lies below. It must not know when a query is
started, stopped or restarted: `supervision` decides that.
"""
