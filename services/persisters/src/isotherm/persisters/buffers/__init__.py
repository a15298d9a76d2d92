"""What happens to the records of each assigned partition, as a state machine without IO: wait, prepare, write, settle.

It imports `api` and the connector's error policies. It does not know Kafka's client, threads, sinks or metrics: the
task's loop calls it with records, answers of the sink and the time.
"""
