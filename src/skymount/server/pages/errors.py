"""Errors as pages: what happened, and what to do."""

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from skymount.server.http.responses import HeaderList
from skymount.server.pages.rendering import render_page

_EXPLAINED = {
    400: ("This cannot be understood", "Check the address, or what you sent."),
    401: ("The password is needed", "Sign in on the first page."),
    403: ("This is not allowed", ""),
    404: ("Not found", "Check the address. Perhaps the content is at another portal."),
    405: ("This cannot be done here", ""),
    408: ("The upload stopped", "No data came for too long. Upload it again."),
    410: ("It is gone", "It was here, and is no more."),
    412: ("It has changed", "Load the page again."),
    413: ("This is too large", "Nothing was stored. Upload less at once, or raise --max-upload."),
    416: ("There is no such part", "The content is shorter than what was asked for."),
    421: ("This portal has another name", "Use its own address, or allow this name."),
    429: ("Too many requests", "Wait a moment, then try again."),
    500: ("The portal failed", "Its log says more."),
    503: ("The portal is busy", "Wait a moment, then try again."),
    507: ("The disk is full", "Nothing of the upload was kept. Make room, then upload it again."),
}


def title_of(status: int) -> str:
    """Return what an error is called, for people."""
    if status in _EXPLAINED:
        return _EXPLAINED[status][0]
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "An error"


async def error_page(
    request: Request, status: int, message: str, headers: HeaderList | None = None
) -> Response:
    """Answer with an error as a page."""
    advice = _EXPLAINED.get(status, ("", ""))[1]
    title = title_of(status)
    message = "" if message.casefold() == title.casefold() else message
    return await render_page(
        request,
        "error.html",
        status=status,
        headers=headers,
        code=status,
        title=title,
        message=message,
        advice=advice,
    )
