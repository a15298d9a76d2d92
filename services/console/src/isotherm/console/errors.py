"""Refusals of a request, with the HTTP status that Kafka Connect gives them."""

from __future__ import annotations


class RestError(Exception):
    """A request is refused; `status` is the HTTP status code, the text is for the caller."""

    status = 500


class BadRequestError(RestError):
    """The request is wrong in itself."""

    status = 400


class ForbiddenError(RestError):
    """The caller may not do this."""

    status = 403


class NotFoundError(RestError):
    """What the request names does not exist."""

    status = 404


class ConflictError(RestError):
    """The request does not fit the state of things."""

    status = 409


class UnavailableError(RestError):
    """A server that is needed does not answer; the same request may succeed later."""

    status = 503
