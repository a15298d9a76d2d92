"""Reconciliation: compares all the time what is published and stored with the readings, and names what differs.

`cells`, `readings`, `windows`, `ledger` and `rows` are pure. `follower` reads the topics, `window_checker` compares,
and `row_checker` has rows of stores read back. What they find is kept in a topic (`findings`).
"""
