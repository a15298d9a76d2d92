"""Tells alerts to the routes of the settings. Each route has a thread, a consumer group and a target of its own.

So no route waits for another, and no alert waits for a route. This package may import `routes`, `input`, `settings`,
`metrics` and `rules.device_table`. It must not know Faust, or how an alert is decided.
"""
