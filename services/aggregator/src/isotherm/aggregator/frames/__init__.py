"""The computation on readings as functions from Spark columns and data frames to columns and data frames.

It decodes values, finds the reason for which a record is rejected, makes windows and groups, and encodes the results.
This package may import `watermark` and `offsets`. It must not know the settings, and it starts no query.
"""
