"""Worlds: real code of the services in the kernel, over models of what is around them, judged by the suite's promises.

A world is a function of a scenario, which is a seed with a list of faults. `simulate` runs many seeds, shrinks the
faults of one that has a finding, and prints the command that runs it again.
"""
