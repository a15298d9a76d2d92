"""Devices: their newest states, metadata and alerts, cached from compacted topics, and their windows, read on demand.

It may import `records`, settings and errors of the console. It must not know connectors, HTTP or pages.
"""
