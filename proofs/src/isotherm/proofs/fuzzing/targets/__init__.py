"""The targets, one module for each family of formats.

They import the code of the suite that takes bytes from outside, and only its public entrances. They must not know how
inputs are generated.
"""
