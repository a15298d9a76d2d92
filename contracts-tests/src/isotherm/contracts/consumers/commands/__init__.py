"""What consumers need of the topics of commands to devices, a module for each consumer (ADR 274).

It may import what the other consumers may. It must not know how messages are compared.
"""
