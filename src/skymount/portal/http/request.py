"""A request to a portal: its address, its headers, and errors that show no secrets."""

import re
from collections.abc import AsyncIterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from skymount import __version__
from skymount.errors import PortalError
from skymount.settings import PortalOptions
from skymount.wire.http import requests

_WORDS = 300  # characters of a portal's message in an error; they end up in logs
_SECRET = 6  # characters; a shorter part of a header is more likely a word than a secret
_CONTENT = ("skylink/", "root")  # endpoints below the dialect's prefix that send any content
_SEPARATORS = re.compile(r"[\s,;=]+")


Content = bytes | AsyncIterable[bytes]
"""A request's body. To be sent again after a redirect it must begin anew at each iteration."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request with its options, to one portal."""

    request: requests.Request
    options: PortalOptions
    portal: str
    more: tuple[tuple[str, str], ...] = ()
    """Headers that go with the body."""

    @property
    def address(self) -> str:
        return self.portal + self.request.target

    @property
    def is_of_service(self) -> bool:
        """Whether it is for the portal itself, not for content, which may be a web page."""
        prefix, _, below = self.request.target[1:].partition("/")
        if prefix == "hnsres":
            return True
        return prefix == self.options.dialect.prefix and not below.startswith(_CONTENT)

    @property
    def shown_address(self) -> str:
        """The address for errors: without the query, which may name a key."""
        return self.address.partition("?")[0]

    def headers(self) -> tuple[list[tuple[bytes, bytes]], frozenset[bytes]]:
        """Return the headers, and the lower-case names of those that no other origin may see.

        Headers of the user replace the API key and the user agent, but not the request's own.
        """
        options = self.options
        agent = options.user_agent or f"{options.dialect.agent} skymount/{__version__}"
        common = [("User-Agent", agent)]
        if options.api_key:
            common.append(("Authorization", requests.basic_credentials(options.api_key)))
        own = [("Accept-Encoding", "identity"), *self.request.headers, *self.more]
        found = {name.lower(): (name, value) for name, value in (*common, *options.headers, *own)}
        private = {"authorization", "cookie", *(name.lower() for name, _ in options.headers)}
        private -= {"user-agent", *(name.lower() for name, _ in own)}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in found.values()]
        return encoded, frozenset(name.encode() for name in private)

    @property
    def host(self) -> str:
        """Who was asked, for messages."""
        return urlsplit(self.shown_address).netloc or self.shown_address

    def error(
        self, kind: type[PortalError], message: str, status: int | None = None
    ) -> PortalError:
        """Make an error of this request; the message may be the portal's."""
        return kind(
            self._shown(message) or kind.__name__,
            status=status,
            method=self.request.method,
            url=self.shown_address,
        )

    def _shown(self, text: str) -> str:
        for secret in sorted(self._secrets(), key=len, reverse=True):
            if len(secret) < _SECRET:  # not letter by letter
                text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
            else:
                text = text.replace(secret, "***")
        return "".join(c if c.isprintable() else " " for c in text[:_WORDS])

    def _secrets(self) -> set[str]:
        """Return what may not be in an error if a portal sends our headers back."""
        values = [value for _, value in self.options.headers]
        parts = [part for value in values for part in _SEPARATORS.split(value)]
        found = {text for text in (*values, *parts) if len(text) >= _SECRET}
        if key := self.options.api_key:
            credentials = requests.basic_credentials(key)
            found |= {key, credentials, credentials.removeprefix("Basic ")}
        return found
