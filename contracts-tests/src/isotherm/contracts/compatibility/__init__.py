"""Compatibility of schema versions: the registry's rules, and generated records written and read with two versions.

It may import `schema_catalog` and `pact.needs`. It must not know services or how messages are made.
"""
