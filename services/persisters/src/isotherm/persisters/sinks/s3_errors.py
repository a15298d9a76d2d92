"""Which answers of S3 no later attempt changes, by the code in the client's text. Pure.

Source: Amazon's API reference, "Error responses"; what clients say of a redirect, which has no code of its own.
"""

from __future__ import annotations

import re

_REFUSED = re.compile(
    r"\b(?:NoSuchBucket|NO_SUCH_BUCKET|InvalidBucketName|NotImplemented"
    r"|AccessDenied|ACCESS_DENIED|AccountProblem|AllAccessDisabled"
    r"|InvalidAccessKeyId|INVALID_ACCESS_KEY_ID|SignatureDoesNotMatch|SIGNATURE\w*"
    # The bucket is in another region, or at another endpoint.
    r"|AuthorizationHeaderMalformed|PermanentRedirect|IllegalLocationConstraintException|HTTP status 301"
    r"|incorrectly configured region|bucket is located in)\b",
)
_TOKEN = re.compile(
    r"\b(?:ExpiredToken\w*|EXPIRED_TOKEN|InvalidToken|INVALID_TOKEN|TokenRefreshRequired"
    # An answer to HEAD has no body, and so no code.
    r"|HTTP status 400\) during Head\w+)\b"
)


def is_refused(text: str, *, are_credentials_fixed: bool) -> bool | None:
    """Return whether S3 refuses for good, so that the task has to stop; None for a text that says neither.

    Args:
        text: what the client says.
        are_credentials_fixed: whether the configuration has the keys and the token. Those that a client finds by itself
            (of the machine, of a file, of the catalog) it renews, so a token that is over is a matter of time.
    """
    if _TOKEN.search(text):
        return are_credentials_fixed
    return True if _REFUSED.search(text) else None
