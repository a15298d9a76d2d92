"""The sections of the settings, one module each, and nothing that uses them.

It may import `isotherm.servicekit.settings`. It must not know the other sections or what they configure.
"""
