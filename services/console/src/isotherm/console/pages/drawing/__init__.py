"""Pictures on the pages, drawn as SVG: charts of a device, the flow of records between connectors and topics.

It may import the state that it draws. It must not know requests, templates or settings.
"""
