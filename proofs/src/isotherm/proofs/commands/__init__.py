"""Commands through kills: what was issued, what devices have in their logs, and the outcomes are compared.

It may import the demo's processes and the records of commands. It must not know how commands are settled or delivered.
"""
