"""The QoS 2 state of clients: its rules, its topic, its restoration at the start and its migration between processes.

It may import `codec`, `protocol`, `ingest` and `metrics`. It describes what to store as `SessionWrite` and must not know
how transactions store it, nor the connections that cause it beyond a `ClientPort`.
"""
