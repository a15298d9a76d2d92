"""The whole path with one command: servers, services and simulators, and the balance of what went through them."""
