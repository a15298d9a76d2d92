"""Mutation testing of the delivery cores: small changes of their code, each of which some unit test must notice.

`cores` names modules and the tests that judge them, `operators` makes the mutants, `trial` runs tests on each in a
forked process. It imports pytest and, through the tests, the code under test; it must not know what a core does.
"""
