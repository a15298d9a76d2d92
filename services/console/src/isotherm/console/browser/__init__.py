"""The topic browser: all topics with their writers and readers, and pages of their records with secrets masked.

It may import `records`, `connectors`, `cluster` and `access`. It must not know HTTP or pages.
"""
