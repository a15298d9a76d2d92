"""Fuzzing of mqtt-proxy's compiled module with memory errors made visible, guided by the branches that it takes.

`build` compiles the module again with AddressSanitizer, UndefinedBehaviorSanitizer and counters; `worker` runs inputs
of a target with it in a process of its own. Neither knows what a target parses (ADR 143).
"""
