"""The web pages under `/ui`: routes, templates, charts and the flow diagram, rendered on the server.

It may import every other sub-package. It must not decide anything: it shows what the others return and passes on forms.
"""
