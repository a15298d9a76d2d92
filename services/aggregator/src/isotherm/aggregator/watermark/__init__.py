"""The rules of time: when a reading is late, how far the input has been read, and which windows are complete.

Pure functions and values on times and offsets. This package may import `offsets`. It must not know Kafka, Spark or the
settings.
"""
