"""What a download serves (docs/wire.md 4.2, 4.3, 4.5)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from skymount.server.http.forms import (
    Params,
    boolean,
    check_timeout,
    decode_path,
    number,
)
from skymount.server.http_error import HttpError
from skymount.server.storage.skyfile_index import ParsedSkyfile
from skymount.wire.http.byte_range import ByteRange
from skymount.wire.metadata import (
    Metadata,
    Subfile,
    encode_metadata,
    fits_header,
    select,
    subpath_metadata,
)

ARCHIVE_TYPES = {
    "zip": "application/zip",
    "tar": "application/x-tar",
    "targz": "application/gzip",
}
_SUFFIXES = {"zip": ".zip", "tar": ".tar", "targz": ".tar.gz"}
_FORMATS = ("concat", *ARCHIVE_TYPES)


@dataclass(frozen=True, slots=True)
class DownloadQuery:
    """The parameters of a download."""

    archive: str  # the format parameter
    attachment: bool
    with_metadata: bool
    with_layout: bool
    range_header: str  # of start and end

    @classmethod
    def parse(cls, params: Params, *, has_range: bool) -> Self:
        archive = params.get("format", "").lower()
        if archive and archive not in _FORMATS:
            raise HttpError(
                400,
                "unable to parse 'format' parameter, allowed values are: 'concat', 'tar', 'targz'"
                " and 'zip'",
            )
        check_timeout(params)
        return cls(
            archive=archive,
            attachment=boolean(params, "attachment"),
            with_metadata=not boolean(params, "no-response-metadata"),
            with_layout=boolean(params, "include-layout"),
            range_header=_range_of(params, has_range=has_range),
        )


def _range_of(params: Params, *, has_range: bool) -> str:
    start, end = number(params, "start"), number(params, "end")
    if start is None and end is None:
        return ""
    if start is None or end is None:
        raise HttpError(400, "'start' and 'end' parameters must both be set or both be left out")
    if has_range:
        raise HttpError(400, "'start' and 'end' parameters cannot be used with a Range header")
    if start > end:
        raise HttpError(400, "'start' parameter must not be greater than 'end'")
    return ByteRange(start, end + 1).header()


@dataclass(frozen=True, slots=True)
class SelectedContent:
    """What is served."""

    name: str
    content_type: str  # as stored; empty when it has to be guessed, by this file name:
    guess_by: str
    extents: tuple[tuple[int, int], ...]  # (offset, length) in the payload, in the order served
    metadata_header: bytes | None
    archive: str = ""
    members: tuple[tuple[str, Subfile], ...] = ()
    status: int = 200

    @property
    def size(self) -> int:
        return sum(length for _, length in self.extents)


def path_with_plus(metadata: Metadata, raw: str) -> str:
    """Decode the path of a URL. ``+`` is a space only where nothing has the name with a plus, and
    something has the one with a space (docs/wire.md 4.1).
    """
    path = decode_path(raw)
    if select(metadata, path):
        return path
    spaced = decode_path(raw.replace("+", " "))
    return spaced if select(metadata, spaced) else path


def select_content(
    skyfile: ParsedSkyfile, path: str, archive: str, header_limit: int, *, may_redirect: bool
) -> SelectedContent | None:
    """Decide what a path, without a leading slash, serves in a format; None: the client is
    redirected to it with a slash at its end, where that may be.

    HttpError 404 or 400, unless the skyfile has an error page for that status.
    """
    try:
        return _select(skyfile, path, archive, header_limit, may_redirect=may_redirect)
    except HttpError as error:
        page = skyfile.metadata.errorpages.get(str(error.status), "").removeprefix("/")
        found = skyfile.metadata.subfiles.get(page)
        if found is None:
            raise
        return _file(_last(page), found, skyfile.header, status=error.status)


def _select(
    skyfile: ParsedSkyfile, path: str, archive: str, header_limit: int, *, may_redirect: bool
) -> SelectedContent | None:
    metadata = skyfile.metadata
    index = "" if archive else index_of(metadata, path)
    if index and may_redirect and _wants_slash(metadata, path, index):
        return None
    if index and not path:
        return _file(_last(metadata.filename), metadata.subfiles[index], skyfile.header)
    if not path:
        return _whole(skyfile, archive)
    selected = select(metadata, index or path)
    if not selected:
        raise HttpError(404, f"failed to download contents for path: /{path}")
    raw = encode_metadata(subpath_metadata(index or path, selected))
    header = raw if fits_header(raw, header_limit) else None
    return _selected(_last(index or path), selected, archive, header)


def index_of(metadata: Metadata, path: str) -> str:
    """Return the index file of a path; empty when there is none, or the path is a file itself."""
    if path in metadata.subfiles:
        return ""
    if not metadata.tryfiles:
        return "" if path else _default_path(metadata)
    directory = path.removesuffix("/") + "/" if path else ""
    for name in metadata.tryfiles:
        candidate = name[1:] if name.startswith("/") else directory + name
        if candidate in metadata.subfiles:
            return candidate
    return ""


def _default_path(metadata: Metadata) -> str:
    if metadata.defaultpath and not metadata.subfiles:
        raise HttpError(400, "defaultpath is not allowed on single files, please specify a format")
    if metadata.defaultpath and metadata.disabledefaultpath:
        raise HttpError(
            400,
            "invalid defaultpath state - both defaultpath and disabledefaultpath are set, please"
            " specify a format",
        )
    if metadata.disabledefaultpath:
        return ""
    if metadata.defaultpath:
        default = metadata.defaultpath.removeprefix("/")
        if default not in metadata.subfiles:
            raise HttpError(
                400,
                f"skyfile has invalid default path ({metadata.defaultpath}), please specify a"
                " format",
            )
        return default
    return "index.html" if "index.html" in metadata.subfiles else ""


def _wants_slash(metadata: Metadata, path: str, index: str) -> bool:
    """Whether the page's relative links only work with a slash at the end of the URL."""
    is_page = index.endswith((".html", ".htm"))
    is_inside = not path or index.startswith(f"{path}/")
    return is_page and is_inside and len(metadata.subfiles) > 1


def _whole(skyfile: ParsedSkyfile, archive: str) -> SelectedContent:
    metadata, size = skyfile.metadata, skyfile.stored.layout.filesize
    name = _last(metadata.filename)
    subfiles = metadata.subfiles or {metadata.filename: Subfile(mode=metadata.mode, len=size)}
    if archive == "concat" and len(subfiles) > 1:
        return SelectedContent(name, "", name, ((0, size),), skyfile.header)
    return _selected(name, subfiles, archive, skyfile.header)


def _selected(
    name: str, selected: Mapping[str, Subfile], archive: str, header: bytes | None
) -> SelectedContent:
    if len(selected) == 1 and archive not in ARCHIVE_TYPES:
        return _file(name, next(iter(selected.values())), header)
    ordered = sorted(selected.items(), key=lambda item: (item[1].offset, item[0]))
    if archive == "concat":
        extents = tuple((sub.offset, sub.len) for _, sub in ordered)
        return SelectedContent(name, "", name, extents, header)
    archive = archive or "zip"
    full_name, content_type = name + _SUFFIXES[archive], ARCHIVE_TYPES[archive]
    return SelectedContent(full_name, content_type, "", (), header, archive, tuple(ordered))


def _file(name: str, sub: Subfile, header: bytes | None, status: int = 200) -> SelectedContent:
    guess_by = sub.filename or name
    return SelectedContent(
        name, sub.contenttype, guess_by, ((sub.offset, sub.len),), header, status=status
    )


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
