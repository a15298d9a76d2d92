"""Charts and monitoring: generates and checks values schemas, dashboards and alert rules from the services' own code.

It may import every service, the command line and the libraries. No service and no library may import it.
"""
