"""The QoS 2 state of clients: its rules, its topic, its restoration at the start and its migration between processes.

It may import `codec`, `protocol`, `ingest`, `settings` and `metrics`. It describes what to store as `SessionWrite`. It
must not know how transactions store it, and reaches a client only through `ClientPort`.
"""
