"""Rules that change while the service runs: a file, the topic of rules, means of groups, and dry runs of a rule.

Threads read these and hand pure objects to the stream. This package may import `input`, `engine`, `rules` and what lies
beside them. It must not know Faust, the processor or the routes.
"""
