"""The stores: one module a sink with its definition, and pure modules for what each of them writes."""
