"""Storms of a route that tells each alert by itself: which alerts one notification tells, also after a restart.

It may import `grouping`, `routes` and `input`. It must not know targets, deliveries or the route's consumer.
"""
