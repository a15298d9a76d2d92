"""Distributed tracing by OpenTelemetry, off unless a service is told where spans go (ADR 271).

Nothing here is imported by a process that does not trace, but for the settings, the names of headers, and types.
"""
