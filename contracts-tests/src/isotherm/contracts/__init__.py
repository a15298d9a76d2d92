"""Consumer-driven contracts of the topics: needs as pacts, verified by running each provider's real encoding."""
