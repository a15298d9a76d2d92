"""Servers that keep files for others: HDFS, where Spark's checkpoints may lie.

They are no part of the local stack that `isotherm-stack up` starts. This package may import the modules beside it. It
must not know what is kept.
"""
