"""Looks for faults in the suite: simulation, histories, fuzzing, mutations.

It may import every package; none imports it.
"""
