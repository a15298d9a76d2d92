"""The indices that the sink writes: their names, mappings and templates, data streams, and when they expire.

It imports the client of the server and what statements ask for. It does not know bulk requests or their responses.
"""
