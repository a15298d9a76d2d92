"""Random faults on real servers, by seed: a plan, injected into the demo's system, whose history is then judged.

It may import the demo, the stack and `history`. It knows no service but by its name and its process.
"""
