"""Makes correct histories from a seed, and plants faults in them, so that tests show what the checker convicts.

The generator computes windows and alerts by plain means of its own; it shares only the format with the checker.
"""
