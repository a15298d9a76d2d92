"""Servers that keep files for others: S3 and HDFS, where Spark's checkpoints may lie.

The local stack starts S3 when asked for, and HDFS never. This package may import the modules beside it. It must not
know what is kept.
"""
