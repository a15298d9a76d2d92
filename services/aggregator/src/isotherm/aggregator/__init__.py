"""The aggregator service: computes window aggregates of readings with Spark Structured Streaming, and corrects them.

It reads topics of readings, and writes aggregates, groups, late readings and dead-letter records. Start at `service`.
"""
