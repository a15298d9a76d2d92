"""Decides who may connect and publish: passwords, certificates, ACL rules, login throttling, limits, the TLS context.

It may import `codec`, `settings`, `metrics` and KCQL's topic filters. It returns decisions (`Identity` or `Refused`)
and must not know connections, sessions or Kafka.
"""
