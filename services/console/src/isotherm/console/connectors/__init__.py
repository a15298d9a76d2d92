"""Operations on connectors: change them, validate configurations, move offsets, tell what they read and write.

It may import `cluster` and `access`, and talks to Kafka only through the admin client. It must not know HTTP, JSON
shapes or pages.
"""
