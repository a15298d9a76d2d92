"""A model of a Kafka cluster: logs, transactions, consumer groups, and the network before it, all without IO.

It is given timers and a random generator (`timers.Timers`) and does nothing by itself but in their callbacks, so that
the simulated threads and the simulated event loop drive the same code. It must not know services or worlds.
"""
