"""What runs mqtt-proxy's compiled module on bytes of clients and of stored sessions, beside the way without it.

`formats` compares single formats, `steps` a connection with all that befalls it, `bulk` its bounds. `server` is the
connection and what Kafka gets of it, `streams` makes inputs. They import mqtt-proxy, and know no other service.
"""
