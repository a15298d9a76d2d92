"""Protocol Buffers with a schema registry: schemas as .proto texts, messages as rows, types in Avro's terms.

It imports the Protocol Buffers library and must not know the registry, topics or sinks.
"""
