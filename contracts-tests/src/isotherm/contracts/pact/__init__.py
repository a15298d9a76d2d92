"""Pacts and recordings: what a consumer needs, how it is verified, and the bytes that providers wrote.

It may import `harness` and `schema_catalog`. It must not know single consumers or providers.
"""
