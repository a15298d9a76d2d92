"""Runs the two queries: starts, restarts, spaces and stops them, follows their progress, and advances the watermark.

It decides what the end of a query means, applies the target state from the control topic, and waits for servers. This
package may import `spark` and everything below it. It must not know the command line or how the service is composed.
"""
