"""Calls beyond Kafka Connect's REST API, under `/isotherm`, with their pydantic models and an OpenAPI document.

It may import every sub-package except `pages`. It must not know templates or how requests are authenticated.
"""
