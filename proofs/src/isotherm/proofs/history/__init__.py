"""Histories of runs, and the checker that judges them by the promises of the suite.

`format` defines a history. `checking` judges one and knows nothing of the suite, so that a fault of the suite's code
cannot hide in the checker. `recording` writes the history of a run on real servers; only it may import the suite.
"""
