"""Failed records: error policies, failure limits, and dead-letter records with Kafka Connect's headers.

It may import `config` and `isotherm.servicekit`. It must not know tasks, workers, offsets or the control topics.
"""
