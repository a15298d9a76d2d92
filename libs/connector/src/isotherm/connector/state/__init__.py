"""The control topics: a connector's desired state on `isotherm.connectors`, a task's status on `isotherm.status`.

It may import `config`, `isotherm.schemas` and `isotherm.servicekit`. It must not know how tasks are run.
"""
