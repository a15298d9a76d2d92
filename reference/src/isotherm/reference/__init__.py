"""Generates the reference pages of the documentation from the code.

It may import every service, because it describes all of them. No service and no library may import it.
"""
