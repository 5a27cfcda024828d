"""The exception that ends a request with an error response.

Code that decides raises it without an HTTP library; `http.responses` makes the response.
"""

from skymount.errors import SkymountError


class HttpError(SkymountError):
    """The request is answered with this status and message."""

    def __init__(
        self,
        status: int,
        message: str,
        headers: tuple[tuple[str, str], ...] = (),
        *,
        plain_text: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers
        self.plain_text = plain_text
        """Answer with the bare message instead of JSON."""
