"""Shared by every test of the workspace; the fixtures for servers live in the stack package."""

pytest_plugins = ["stack.pytest_plugin"]
