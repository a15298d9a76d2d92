"""What a service that takes readings in attests: the records that it has acknowledged to devices (ADR 270).

It may import `isotherm.schemas` and `isotherm.servicekit`. It must not know what a record holds.
"""
