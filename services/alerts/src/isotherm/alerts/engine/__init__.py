"""The decisions on one device: readings and time in, alerts out. Pure; every decision can be repeated.

It also holds the state that these decisions need between two readings, and its form in the changelog. This package may
import `rules`. It must not know Kafka, Faust, the settings or any clock.
"""
