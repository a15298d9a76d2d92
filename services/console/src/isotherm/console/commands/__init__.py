"""Settles commands to devices: each one gets exactly one final outcome in `device.command-outcomes` (ADR 274).

`acceptance`, `settlement` and `finished` are pure; `settler` is the loop around them, `restoring` reads the state of
assigned partitions back, and `transactions` writes. It may import `records` and `settings` of the console and the
records of `isotherm.connector.commands`. It must not know how a command reaches a device, REST, or the pages.
"""
