"""The compiled judging of quiet devices: readings that open and close nothing, a batch at a time (ADR 129).

It takes only what it treats exactly as `engine` does, which defines what is right, and leaves everything else to it. It
may import `engine`, and must not know Kafka, Faust or the settings.
"""
