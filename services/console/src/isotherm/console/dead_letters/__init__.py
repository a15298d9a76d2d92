"""Dead-letter queues as work lists: list open records, replay them to their topics, or discard them.

It may import `records`, settings and errors of the console. It must not know connectors, pages or REST models: the
caller says which topics are configured as dead-letter queues.
"""
