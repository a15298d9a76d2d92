"""Errors that answer a request, with the HTTP status that Kafka Connect gives them."""

from __future__ import annotations


class RestError(Exception):
    """The request fails. `status` is the HTTP status code; the text is for the caller."""

    status = 500


class BadRequestError(RestError):
    """The request itself is wrong."""

    status = 400


class ForbiddenError(RestError):
    """The caller may not do this."""

    status = 403


class NotFoundError(RestError):
    """What the request names does not exist."""

    status = 404


class ConflictError(RestError):
    """The request contradicts the current state, for example of a connector."""

    status = 409


class UnavailableError(RestError):
    """A server that the request needs does not answer. The same request may succeed later."""

    status = 503
