"""ACLs of Kafka for the principals of the suite's services: what they should be, and making the cluster's the same.

It reads the topic book and `access.yaml` through `isotherm.schemas` and may import the settings; it must not know a
command. `permissions` and `plan` are pure.
"""
