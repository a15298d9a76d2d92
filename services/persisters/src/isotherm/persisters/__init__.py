"""Topics into stores, routed by KCQL: one loop, and sinks that are plug-ins."""
