"""What senders of webhooks share: the signature of a request.

It imports nothing of the suite, and knows neither settings nor a way to send.
"""
