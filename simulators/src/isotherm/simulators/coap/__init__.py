"""A CoAP test server with observable sensors."""
