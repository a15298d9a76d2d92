"""The contract of the console's REST API with the command line: exchanges of the real client with the real application.

It may import the console, the command line and `matching`. It must not know topics or how messages are made.
"""
