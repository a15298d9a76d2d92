"""What senders of webhooks share: the signature of a request, and the pause that an answer asks for.

It imports nothing of the suite, and knows neither settings nor a way to send.
"""
