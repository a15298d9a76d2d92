"""`python -m isotherm.servicekit.probe SERVICE`: checks whether the running SERVICE of this container is ready.

For the HEALTHCHECK of an image: the same result as `SERVICE health`, without importing the service, which would take a
second of processor time every half minute. It reads the address from the service's environment variables.
"""

import os
import socket
import sys

_TIMEOUT_S = 5
_OK, _FAILED, _CONFIGURATION = 0, 1, 2


def main(argv: list[str], environ: dict[str, str]) -> int:
    """Print the body of `GET /ready`; returns 0 when its status is 200, 1 when not, 2 when the port is not known."""
    prefix = f"ISOTHERM_{argv[0].upper().replace('-', '_')}__HTTP__"
    host, port = environ.get(f"{prefix}HOST", "127.0.0.1"), environ.get(f"{prefix}PORT", "")
    if not port.isdecimal():
        sys.stderr.write(f"{prefix}PORT: {port!r}; expected the port at which the service answers\n")
        return _CONFIGURATION
    try:
        with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
            # HTTP 1.0 (RFC 1945): the end of the connection is the end of the body.
            connection.sendall(f"GET /ready HTTP/1.0\r\nHost: {host}\r\n\r\n".encode("ascii"))
            with connection.makefile("rb") as answer:
                status = answer.readline().split()
                _, _, body = answer.read().partition(b"\r\n\r\n")
    except OSError as error:
        sys.stderr.write(f"no answer from {host}:{port}: {error}\n")
        return _FAILED
    sys.stdout.write(body.decode("utf-8", "replace") + "\n")
    return _OK if status[1:2] == [b"200"] else _FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], dict(os.environ)))
