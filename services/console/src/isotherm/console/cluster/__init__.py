"""The cluster's state: connectors, tasks, workers and classes, followed from the control topics and kept in memory.

It may import `records`, settings and errors of the console. It must not know HTTP or what the console shows of it.
"""
