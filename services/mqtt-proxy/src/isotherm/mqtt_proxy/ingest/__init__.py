"""Turns a publish into Kafka records: routes, translation, headers, topic encoders, and the in-flight gate.

It may import `codec`, `protocol`, `settings` and `metrics`. It must not know connections, sessions or transactions; it
reaches a client only through `ClientPort`.
"""
