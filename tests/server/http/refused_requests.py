"""Raw requests, and the statuses of all that a portal answers before it closes the connection.

Another request comes behind each of them. It must not be answered where the end of the first one is
in doubt: what a proxy takes for content would be a request here (RFC 9112, 11.2).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

Answers = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """What a client sends on one connection. `is_cut`: it then ends its side, without `NEXT`."""

    name: str
    data: bytes
    answers: Answers
    is_cut: bool = False

    @property
    def sent(self) -> bytes:
        return self.data if self.is_cut else self.data + NEXT


NEXT = b"GET /svc/stats HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
GOOD = (200, 200)  # the request, and the next one
BAD = (400,)
TOO_LONG = (431,)
LIMIT = 64 << 10  # bytes of a head, and of trailers

_HOST = b"Host: localhost\r\n"
POST = b"POST /svc/skyfile?filename=a&dryrun=1 HTTP/1.1\r\n" + _HOST + b"Content-Type: a/b\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
_GET = b"GET /svc/stats HTTP/1.1\r\n" + _HOST
_UNWANTED = b"POST /svc/portals HTTP/1.1\r\n" + _HOST
_HELLO = b"5\r\nhello\r\n0\r\n\r\n"
_ENDLESS = b"x" * 200_000

_REQUEST_LINES = {
    BAD: {
        "two blanks before the target": b"GET  /svc/stats HTTP/1.1",
        "two blanks before the version": b"GET /svc/stats  HTTP/1.1",
        "a blank at the end": b"GET /svc/stats HTTP/1.1 ",
        "a blank before the method": b" GET /svc/stats HTTP/1.1",
        "a blank in the target": b"GET /svc/ stats HTTP/1.1",
        "a tab before the target": b"GET\t/svc/stats HTTP/1.1",
        "a tab before the version": b"GET /svc/stats\tHTTP/1.1",
        "CR before the version": b"GET /svc/stats\rHTTP/1.1",
        "LF before the version": b"GET /svc/stats\nHTTP/1.1",
        "an empty line before it": b"\r\nGET /svc/stats HTTP/1.1",
        "LF before it": b"\nGET /svc/stats HTTP/1.1",
        "no method": b" /svc/stats HTTP/1.1",
        "a method of other bytes": b"G@T /svc/stats HTTP/1.1",
        "a method with a colon": b"GET: /svc/stats HTTP/1.1",
        "no target": b"GET HTTP/1.1",
        "an empty target": b"GET  HTTP/1.1",
        "a method alone": b"GET",
        "no version": b"GET /svc/stats",
        "an empty version": b"GET /svc/stats ",
        "a version in lower case": b"GET /svc/stats http/1.1",
        "a version without a point": b"GET /svc/stats HTTP/1",
        "a version of three digits": b"GET /svc/stats HTTP/1.10",
        "NUL in the target": b"GET /svc/\0 HTTP/1.1",
        "a control byte in the target": b"GET /svc/\x01 HTTP/1.1",
        "DEL in the target": b"GET /svc/\x7f HTTP/1.1",
        "other bytes in the target": b"GET /\xff\xfe HTTP/1.1",
        "UTF-8 in the target": "GET /ä HTTP/1.1".encode(),
        "only bytes": b"\x00\x01\x02",
    },
    (505,): {
        "HTTP/0.9": b"GET /svc/stats HTTP/0.9",
        "HTTP/1.2": b"GET /svc/stats HTTP/1.2",
        "HTTP/2.0": b"GET /svc/stats HTTP/2.0",
        "HTTP/9.9": b"GET /svc/stats HTTP/9.9",
    },
    (204, 200): {"a star": b"OPTIONS * HTTP/1.1"},
    (404, 200): {
        "a whole URL": b"GET http://localhost/svc/stats HTTP/1.1",
        "a target without a slash": b"GET svc/stats HTTP/1.1",
        "CONNECT": b"CONNECT localhost:80 HTTP/1.1",
    },
    (405, 200): {
        "an unknown method": b"BREW /svc/stats HTTP/1.1",
        "HEAD in lower case": b"head /svc/stats HTTP/1.1",  # is another method, so with a body
    },
}

_HEADERS = {  # behind a good Host
    GOOD: {
        "a header": b"A: b",
        "an empty value": b"A:",
        "a value of blanks": b"A: \t ",
        "a tab in a value": b"A: b\tc",
        "Latin-1 in a value": b"A: \xe4\x85\xff",
        "UTF-8 in a value": "A: ä€".encode(),
        "control bytes in a value": b"A: b\x01\x08\x1b\x1c\x7fc",  # cookies have them
        "keep-alive": b"Connection: keep-alive",
        "an upgrade": b"Connection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
        "10,000 headers": b"\r\n".join([b"A: b"] * 10_000),
        "a head as long as may be": b"A: " + b"x" * (LIMIT - len(_GET) - len(b"A: \r\n\r\n")),
        "a length of nothing": b"Content-Length: 0",
        "100-continue without a body": b"Expect: 100-continue",
    },
    (200,): {"close": b"Connection: close"},
    BAD: {
        "LF at the end of a header": b"A: b\nC: d",
        "CR at the end of a header": b"A: b\rC: d",
        "CR before the line end": b"A: b\r",
        "a folded header": b"A: b\r\n c",
        "a header folded by a tab": b"A: b\r\n\tc",
        "a header folded to nothing": b"A: b\r\n ",
        "a blank before the colon": b"A : b",
        "a tab before the colon": b"A\t: b",
        "a blank in a name": b"A A: b",
        "no colon": b"A",
        "an empty name": b": b",
        "NUL in a name": b"A\0: b",
        "another byte in a name": b"\xe4: b",
        "a bracket in a name": b"A(: b",
        "NUL in a value": b"A: b\0c",
        "a vertical tab in a value": b"A: b\x0bc",
        "a form feed at the end": b"A: b\x0c",
        "two Hosts": b"Host: localhost",
        "two Hosts that differ": b"Host: example.org",
    },
    TOO_LONG: {
        "a head one byte too long": b"A: " + b"x" * (LIMIT + 1 - len(_GET) - len(b"A: \r\n\r\n")),
        "a head far too long": b"A: " + _ENDLESS,
        "30,000 headers": b"\r\n".join([b"A: b"] * 30_000),
    },
}

_HEADS = {
    BAD: {
        "LF after the request line": _GET.replace(b"\r\n", b"\n", 1) + b"\r\n",
        "CR after the request line": _GET.replace(b"\r\n", b"\r", 1) + b"\r\n",
        "LF at the end of the head": _GET + b"\n",
        "CR at the end of the head": _GET + b"\rX",
        "LF everywhere": _GET.replace(b"\r\n", b"\n") + b"\n",
        "a folded line first": _GET.replace(_HOST, b" A: b\r\n" + _HOST) + b"\r\n",
        "no Host": _GET.replace(_HOST, b"A: b\r\n") + b"\r\n",
        "no header": _GET.replace(_HOST, b"\r\n"),
        "two Hosts, HTTP/1.0": _GET.replace(b"1.1", b"1.0") + _HOST + b"\r\n",
        "empty lines": b"\r\n" * 50_000,
        "TLS": b"\x16\x03\x01\0\xc8\1\0\0\xc4\3\3" + bytes(range(32)) + b" " + bytes(161),
    },
    (400, 200): {  # not HTTP's matter: a body would have a certain end
        "an empty Host": _GET.replace(_HOST, b"Host:\r\n") + b"\r\n",
        "a Host that is none": _GET.replace(_HOST, b"Host: a b\r\n") + b"\r\n",
    },
    (200,): {
        "HTTP/1.0": _GET.replace(b"1.1", b"1.0") + b"\r\n",
        "HTTP/1.0 and keep-alive": _GET.replace(b"1.1", b"1.0") + b"Connection: keep-alive\r\n\r\n",
        "HTTP/1.0 without Host": b"GET /svc/stats HTTP/1.0\r\n\r\n",
    },
    (505,): {"HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"},
    TOO_LONG: {
        "an endless method": _ENDLESS,
        "an endless target": b"GET /" + _ENDLESS,
        "a long target": b"GET /" + _ENDLESS + b" HTTP/1.1\r\n" + _HOST + b"\r\n",
        "an endless header": _GET + b"A: " + _ENDLESS,
        "endless headers": _GET + b"A: b\r\n" * 50_000,
    },
}

_LENGTHS = {  # before "hello"
    GOOD: {
        "a length": b"Content-Length: 5",
        "a length and blanks": b"Content-Length: \t5 \t",
        "a length with zeros": b"Content-Length: 0005",
        "the same length twice": b"content-length: 5\r\nContent-Length: 5",
        "the same length twice in a line": b"Content-Length: 5, 5",
        "a body that does not wait": b"Content-Length: 5\r\nExpect: 100-continue",
        "an unknown expectation": b"Content-Length: 5\r\nExpect: a",
    },
    BAD: {
        "two lengths": b"Content-Length: 5\r\nContent-Length: 6",
        "two lengths in a line": b"Content-Length: 5, 6",
        "two forms of a length": b"Content-Length: 5\r\nContent-Length: 05",
        "a length and a comma": b"Content-Length: 5,",
        "a length and a number": b"Content-Length: 5 5",
        "a length with a sign": b"Content-Length: +5",
        "a negative length": b"Content-Length: -5",
        "a length in hex": b"Content-Length: 0x5",
        "a length with an underscore": b"Content-Length: 0_5",
        "a length with a point": b"Content-Length: 5.0",
        "a length of other digits": "Content-Length: ٥".encode(),
        "an empty length": b"Content-Length:",
        "a length behind a vertical tab": b"Content-Length: \x0b5",
        "a length of 40 digits": b"Content-Length: 1" + b"0" * 39,
        "a length of 40 digits that is small": b"Content-Length: " + b"0" * 39 + b"5",
        "a folded length": b"A: b\r\n\tContent-Length: 5",
        "a length behind LF": b"A: b\nContent-Length: 5",
        "a length behind NUL": b"A: b\0\r\nContent-Length: 5",
    },
}

_CODINGS = {  # before a chunked body
    GOOD: {
        "chunked": b"Transfer-Encoding: chunked",
        "chunked in upper case": b"transfer-encoding:CHUNKED ",
    },
    BAD: {
        "a length and chunked": b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        "chunked and a length": b"Transfer-Encoding: chunked\r\nContent-Length: 20",
        "no length and chunked": b"Content-Length: 0\r\nTransfer-Encoding: chunked",
        "identity": b"Transfer-Encoding: identity",
        "identity, chunked": b"Transfer-Encoding: identity, chunked",
        "chunked, identity": b"Transfer-Encoding: chunked, identity",
        "gzip": b"Transfer-Encoding: gzip",
        "gzip, chunked": b"Transfer-Encoding: gzip, chunked",
        "nearly chunked": b"Transfer-Encoding: xchunked",
        "chunked in quotes": b'Transfer-Encoding: "chunked"',
        "chunked with a parameter": b"Transfer-Encoding: chunked;a=b",
        "chunked and a comma": b"Transfer-Encoding: chunked,",
        "an empty coding": b"Transfer-Encoding:",
        "chunked behind a vertical tab": b"Transfer-Encoding:\x0bchunked",
        "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "chunked twice in a line": b"Transfer-Encoding: chunked, chunked",
        "chunked on a folded line": b"Transfer-Encoding:\r\n chunked",
        "chunked behind LF": b"A: b\nTransfer-Encoding: chunked",
        "chunked behind CR": b"A: b\rTransfer-Encoding: chunked",
        "chunked and a blank before the colon": b"Transfer-Encoding : chunked",
        "chunked on a line that begins with a blank": b" Transfer-Encoding: chunked",
    },
}

_CHUNKS = {
    GOOD: {
        "a small letter as size": b"a\r\n0123456789\r\n0\r\n\r\n",
        "a capital letter as size": b"A\r\n0123456789\r\n0\r\n\r\n",
        "two chunks": b"2\r\nhe\r\n3\r\n\n\r \r\n0\r\n\r\n",
        "line ends in a chunk": b"05;a=b\r\n\r\n\n \r\r\n0\r\nA: b\r\n\r\n",
        "a size of 16 digits": b"0000000000000005\r\nhello\r\n0\r\n\r\n",
        "an end of 16 digits": b"5\r\nhello\r\n0000000000000000\r\n\r\n",
        "extensions": b"5;a=b\r\nhello\r\n0;c\r\n\r\n",
        "an extension in quotes": b'5;a="b;c \\" d"\r\nhello\r\n0\r\n\r\n',
        "an extension of 5 KiB": b"5;a=" + b"x" * 5120 + b"\r\nhello\r\n0\r\n\r\n",
        "trailers": b"5\r\nhello\r\n0\r\nA: b\r\nC: d\r\n\r\n",
        "a length as a trailer": b"5\r\nhello\r\n0\r\nContent-Length: 7\r\n\r\n",
        "trailers of 60 KiB": b"0\r\nA: " + b"x" * (60 << 10) + b"\r\n\r\n",
    },
    BAD: {
        "a size of 17 digits": b"00000000000000005\r\nhello\r\n0\r\n\r\n",
        "a size of 20 digits": b"00000000000000000005\r\nhello\r\n0\r\n\r\n",
        "a size of 21 digits": b"000000000000000000005\r\nhello\r\n0\r\n\r\n",
        "an end of 17 digits": b"5\r\nhello\r\n00000000000000000\r\n\r\n",
        "an empty size": b"\r\nhello\r\n0\r\n\r\n",
        "an extension without a size": b";a\r\nhello\r\n0\r\n\r\n",
        "a negative size": b"-5\r\nhello\r\n0\r\n\r\n",
        "a size with a sign": b"+5\r\nhello\r\n0\r\n\r\n",
        "a size as in C": b"0x5\r\nhello\r\n0\r\n\r\n",
        "a size with an underscore": b"0_5\r\nhello\r\n0\r\n\r\n",
        "a size with another letter": b"g\r\nhello\r\n0\r\n\r\n",
        "a blank before a size": b" 5\r\nhello\r\n0\r\n\r\n",
        "a blank behind a size": b"5 \r\nhello\r\n0\r\n\r\n",
        "a blank before an extension": b"5 ;a\r\nhello\r\n0\r\n\r\n",
        "NUL in an extension": b"5;a=\0\r\nhello\r\n0\r\n\r\n",
        "LF in an extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
        "CR in an extension": b"5;a\rb\r\nhello\r\n0\r\n\r\n",
        "LF after a size": b"5\nhello\r\n0\r\n\r\n",
        "CR after a size": b"5\rhello\r\n0\r\n\r\n",
        "LF after a chunk": b"5\r\nhello\n0\r\n\r\n",
        "CR after a chunk": b"5\r\nhello\r\r0\r\n\r\n",
        "nothing after a chunk": b"5\r\nhello0\r\n\r\n",
        "a longer chunk": b"5\r\nhellohello\r\n0\r\n\r\n",
        "LF after the trailers": b"5\r\nhello\r\n0\r\n\n",
        "LF in the trailers": b"5\r\nhello\r\n0\r\na: b\n\r\n",
        "a folded trailer": b"5\r\nhello\r\n0\r\na: b\r\n c\r\n\r\n",
        "a folded trailer first": b"5\r\nhello\r\n0\r\n a: b\r\n\r\n",
        "a trailer without a colon": b"5\r\nhello\r\n0\r\nA b\r\n\r\n",
        "a trailer with a blank before the colon": b"5\r\nhello\r\n0\r\nA : b\r\n\r\n",
        "a malformed length behind": b"5\r\nhello\r\n0\r\nContent-Length: +5\r\n\r\n",
        "an unknown coding behind": b"5\r\nhello\r\n0\r\nTransfer-Encoding: gzip\r\n\r\n",
    },
    TOO_LONG: {
        "an extension that is too long": b"5;a=" + _ENDLESS + b"\r\nhello\r\n0\r\n\r\n",
        "an endless size": b"5;a=" + _ENDLESS,
        "trailers of 65 KiB": b"0\r\nA: " + b"x" * (65 << 10) + b"\r\n\r\n",
        "endless trailers": b"0\r\n" + b"A: b\r\n" * 50_000,
        "an endless trailer": b"0\r\nA: " + _ENDLESS,
    },
}

_SEVERAL = {
    (200, 200, 404, 200): {
        "requests behind each other": _GET
        + b"\r\n"
        + POST
        + b"Content-Length: 5\r\n\r\nhelloGET /x HTTP/1.1\r\n"
        + _HOST
        + b"\r\n"
    },
    (200, 400): {
        "bytes behind a body": POST + b"Content-Length: 5\r\n\r\nhello\0\1\2\r\n\r\n",
        "text behind a body": POST + b"Content-Length: 5\r\n\r\nhello world\r\n\r\n",
        "an empty line behind a body": POST + b"Content-Length: 5\r\n\r\nhello\r\n",
        "a chunk behind a body": POST + CHUNKED + _HELLO + _HELLO,
    },
    GOOD: {
        "line ends in a body": POST + b"Content-Length: 5\r\n\r\n\n\r\r\n ",
        "no body": POST + b"Content-Length: 0\r\n\r\n",
        "no length": POST + b"\r\n",
        "GET with a body": _GET + b"Content-Length: 5\r\n\r\nhello",
        "GET with a chunked body": _GET + CHUNKED + _HELLO,
    },
    (200,): {"a body, HTTP/1.0": POST.replace(b"1.1", b"1.0") + b"Content-Length: 1\r\n\r\nx"},
    BAD: {"chunked, HTTP/1.0": POST.replace(b"1.1", b"1.0") + CHUNKED + _HELLO},
    (405, 200): {
        "a body that nobody reads": _UNWANTED
        + b"Content-Length: 3000000\r\n\r\n"
        + bytes(3_000_000),
        "chunks that nobody reads": _UNWANTED + CHUNKED + _HELLO,
    },
    (405,): {
        "bad chunks that nobody reads": _UNWANTED + CHUNKED + b"5\r\nhello\n0\r\n\r\n",
        "a body that is waiting and unwanted": _UNWANTED
        + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    },
}

_CUT = {
    (): {
        "nothing": b"",
        "the head alone": POST + b"Content-Length: 5\r\n\r\n",
        "a part of a body": POST + b"Content-Length: 5\r\n\r\nhell",
        "a part of a size": POST + CHUNKED + b"5",
        "a part of a chunk": POST + CHUNKED + b"5\r\nhell",
        "a chunk without the last": POST + CHUNKED + b"5\r\nhello\r\n",
        "chunks without their end": POST + CHUNKED + b"5\r\nhello\r\n0\r\n",
        "a size of 16 letters": POST + CHUNKED + b"F" * 16 + b"\r\nhello",
    },
    BAD: {
        "a part of the request line": b"GET /svc",
        "a part of the head": _GET,
        "a size of 17 letters": POST + CHUNKED + b"F" * 17 + b"\r\nhello",
    },
    (413,): {
        "a body over the limit": POST + b"Content-Length: 9000000000\r\n\r\n" + bytes(1 << 20),
        "a length of 19 digits": POST + b"Content-Length: 1000000000000000000\r\n\r\n",
        "a length of 20 digits": POST + b"Content-Length: 99999999999999999999\r\n\r\n",
    },
}


def _cases(
    table: Mapping[Answers, Mapping[str, bytes]],
    build: Callable[[bytes], bytes] = bytes,
    *,
    is_cut: bool = False,
) -> Iterator[Case]:
    for answers, sent in table.items():
        for name, data in sent.items():
            yield Case(name, build(data), answers, is_cut)


CASES = [
    *_cases(_REQUEST_LINES, lambda line: line + b"\r\n" + _HOST + b"\r\n"),
    *_cases(_HEADERS, lambda lines: _GET + lines + b"\r\n\r\n"),
    *_cases(_HEADS),
    *_cases(_LENGTHS, lambda lines: POST + lines + b"\r\n\r\nhello"),
    *_cases(_CODINGS, lambda lines: POST + lines + b"\r\n\r\n" + _HELLO),
    *_cases(_CHUNKS, lambda body: POST + CHUNKED + body),
    *_cases(_SEVERAL),
    *_cases(_CUT, is_cut=True),
]
