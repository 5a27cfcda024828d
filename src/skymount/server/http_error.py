"""Owns the one exception that ends a request with an error answer.

Decision modules raise it and know no HTTP library; `answers` turns it into a response.
"""

from skymount.errors import SkymountError


class HttpError(SkymountError):
    """The request is answered with this status and message."""

    def __init__(
        self, status: int, message: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers
