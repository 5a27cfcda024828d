"""The exception that ends a request with an error response; `http.responses` makes that."""

from collections.abc import Iterator
from contextlib import contextmanager

from skymount.errors import MalformedError, SkymountError


class HttpError(SkymountError):
    """The request is answered with this status and message, as JSON unless `plain_text`."""

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


@contextmanager
def refuse_malformed(status: int, prefix: str = "") -> Iterator[None]:
    """Turn a MalformedError into an HttpError whose message begins with `prefix`."""
    try:
        yield
    except MalformedError as error:
        raise HttpError(status, f"{prefix}{error}") from None
