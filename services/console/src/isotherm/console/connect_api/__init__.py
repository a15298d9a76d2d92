"""Kafka Connect's REST API: its routes, its JSON, its status codes and its error messages.

It may import `connectors`, `cluster` and `access`. It must not know the calls under `/isotherm` or the pages.
"""
