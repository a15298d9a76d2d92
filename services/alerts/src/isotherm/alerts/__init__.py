"""Reacts to readings at once: rules per device, alerts that open once and close once."""
