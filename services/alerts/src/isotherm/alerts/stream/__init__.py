"""The stream: Faust reads the input, the processor applies it to the states of devices, the outputs publish.

It recovers the states from the changelog, and commits an offset only after Kafka has all effects of the records before
it. This package may import `repartition`, `input`, `engine` and what lies below. It must not know the routes.
"""
