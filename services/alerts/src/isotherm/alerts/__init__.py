"""The alerts service: applies rules to the readings of each device with Faust, and opens and closes alerts at once.

It reads readings or aggregates and device metadata, and writes alerts and the newest state of each device. Start at
`service`.
"""
