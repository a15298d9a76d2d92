"""Notification routes as settings: their kinds, which alerts they take, and what they send.

Pure: an alert and the attributes of its device in, the text or the request of a notification out. This package may
import only `rules` and `servicekit.settings`. It must not know Kafka, sockets or any clock.
"""
