"""Shared by every test of the workspace; the fixtures for servers live in the stack package."""

# Folders at the root that are named like the package in their src/: without this, pytest's importlib mode would
# take the folder for the package as soon as it imports a test below it.
import demo  # noqa: F401
import simulators  # noqa: F401

pytest_plugins = ["stack.pytest_plugin"]
