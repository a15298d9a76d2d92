"""The isotherm command."""
