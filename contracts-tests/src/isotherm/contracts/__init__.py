"""Consumer-driven contracts of the topics: consumers' needs as pacts, verified against each provider's real code.

It may import every service and every library. No service and no library may import it.
"""
