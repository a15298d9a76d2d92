"""Protocol Buffers with a schema registry: schemas as .proto texts, messages as rows, types in Avro's terms.

It imports the Protocol Buffers library, which the extra `protobuf` brings, and must not know topics or sinks.
"""
