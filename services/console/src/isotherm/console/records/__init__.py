"""Reading records of any Kafka topic: consuming without a group, paging, decoding, and following compacted topics.

It imports only settings and errors of the console. It must not know connectors, devices or dead letters.
"""
