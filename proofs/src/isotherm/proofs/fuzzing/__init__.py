"""Fuzzing of everything that parses the bytes of devices, topics, files and REST clients.

`targets` name the code, its own errors and its oracles; they import the packages of the suite. The engines generate
inputs, with coverage (atheris) or without, and must not know what a target parses.
"""
