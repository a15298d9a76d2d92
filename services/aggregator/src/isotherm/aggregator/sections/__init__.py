"""The sections of the settings: tables of keys that `settings` puts together.

Each module is one table, with the checks that need no other one. This package may import `servicekit`. It must not know
the settings as a whole.
"""
