"""Devices: newest states, metadata, alerts and commands, cached from topics, and their windows, read on demand.

It may import `records`, settings and errors of the console. It must not know connectors, HTTP or pages.
"""
