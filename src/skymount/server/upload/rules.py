"""The rules of an upload (docs/wire.md 3.2, 3.3, 2.5), decided without IO."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

import msgspec

from skymount.errors import MalformedError
from skymount.server.config import PortalConfig
from skymount.server.http.forms import Params, boolean, number
from skymount.server.http_error import HttpError, refuse_malformed
from skymount.server.storage.catalogue_reading import count_files
from skymount.wire.http.multipart import PartHeader
from skymount.wire.metadata import Metadata, Subfile, check_path, encode_metadata
from skymount.wire.skykey import check_id

FILE_FIELD, DIRECTORY_FIELD = "file", "files[]"
DEFAULT_TRYFILES = ("index.html",)

_T = TypeVar("_T")

_FEW = 100  # files
_MODE_LIMIT = 1 << 32  # of a file mode, as in Go
_REDUNDANCY_LIMIT = 256
_SUBFILE_OVERHEAD = 80  # bytes of its JSON besides the name (twice) and the content type


def is_form_type(content_type: bytes) -> bool:
    """Whether a body of that type is a form with files."""
    return content_type.lower().lstrip().startswith(b"multipart/form-data")


@dataclass(frozen=True, slots=True)
class UploadQuery:
    """The parameters of an upload, which are valid together."""

    is_form: bool  # else the body is the file itself
    filename: str
    mode: int
    dryrun: bool
    defaultpath: str
    disabledefaultpath: bool
    tryfiles: tuple[str, ...] | None  # None when the parameter is absent
    errorpages: Mapping[str, str]
    skykey_name: str
    skykey_id: str

    @classmethod
    def parse(cls, params: Params, *, content_type: bytes, force_disabled: bool) -> Self:
        """Parse the query; HttpError, but MalformedError for a bad name of a raw upload."""
        is_form = is_form_type(content_type)
        force, dryrun = boolean(params, "force"), boolean(params, "dryrun")
        boolean(params, "root")
        if (number(params, "basechunkredundancy") or 0) >= _REDUNDANCY_LIMIT:
            raise HttpError(400, "unable to parse 'basechunkredundancy' parameter: out of range")
        if force and force_disabled:
            raise HttpError(400, "'force' has been disabled on this node")
        if force and dryrun:
            raise HttpError(400, "'dryRun' and 'force' can not be combined")
        mode = number(params, "mode", base=8) or 0
        if mode >= _MODE_LIMIT:
            raise HttpError(400, "unable to parse 'mode' parameter: out of range")
        _refuse_unsupported(params)
        default, disabled = params.get("defaultpath", ""), boolean(params, "disabledefaultpath")
        tryfiles = _parse_tryfiles(params)
        if default and disabled:
            raise HttpError(
                400,
                "DefaultPath and DisableDefaultPath are mutually exclusive and cannot be set"
                " together",
            )
        if (default or disabled) and not is_form:
            raise HttpError(
                400, "DefaultPath and DisableDefaultPath can only be set on multipart uploads"
            )
        if (default or disabled) and tryfiles:
            raise HttpError(
                400, "defaultpath and disabledefaultpath are not compatible with tryfiles"
            )
        filename, errorpages = params.get("filename", ""), _parse_errorpages(params)
        skykey_id = params.get("skykeyid", "")
        with refuse_malformed(400, "unable to parse 'skykeyid' parameter: "):
            skykey_id = skykey_id and check_id(skykey_id)
        if not is_form:
            _check_name(filename)
            _check_errorpages(errorpages, {})
        return cls(
            is_form=is_form,
            filename=filename,
            mode=mode,
            dryrun=dryrun,
            defaultpath=f"/{default.removeprefix('/')}" if default else "",
            disabledefaultpath=disabled,
            tryfiles=tryfiles,
            errorpages=errorpages,
            skykey_name=params.get("skykeyname", ""),
            skykey_id=skykey_id,
        )

    @property
    def is_encrypted(self) -> bool:
        return bool(self.skykey_name or self.skykey_id)


def _refuse_unsupported(params: Params) -> None:
    if params.get("convertpath"):
        if params.get("filename"):
            raise HttpError(400, "cannot set both a 'convertpath' and a 'filename'")
        raise HttpError(400, "'convertpath' is not supported by this portal")
    if params.get("skykeyname") and params.get("skykeyid"):
        raise HttpError(400, "cannot set both a 'skykeyname' and 'skykeyid'")


def _parse_tryfiles(params: Params) -> tuple[str, ...] | None:
    text = params.get("tryfiles")
    if not text:
        return None if text is None else ()
    return _parse_json(text, tuple[str, ...], "unable to parse 'tryfiles' parameter", "tryfiles")


def _parse_errorpages(params: Params) -> dict[str, str]:
    text = params.get("errorpages") or "{}"
    pages = _parse_json(text, dict[int, str], "invalid 'errorpages' parameter", "errorpages")
    return {str(code): path for code, path in pages.items()}


def _parse_json(text: str, form: type[_T], problem: str, name: str) -> _T:
    try:
        return msgspec.json.decode(text, type=form)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise HttpError(400, f"{problem}: invalid {name} value: {error}") from None


class DescribedUpload(NamedTuple):
    """The metadata of an upload as it is stored, and what the list shows of it."""

    metadata: bytes
    name: str
    files: int


class PartList:
    """The parts of a form as they arrive, within limits of their number and metadata."""

    def __init__(self, config: PortalConfig) -> None:
        self.metadata_limit = config.metadata_limit
        self._max_parts = config.max_parts
        self._subfiles: dict[str, Subfile] = {}
        self._current: PartHeader | None = None
        self._start = 0
        self._count = 0
        self._weight = 0
        self._is_directory = False

    @property
    def is_short(self) -> bool:
        """Whether their metadata is encoded in no time."""
        return self._count <= _FEW

    def begin(self, part: PartHeader, offset: int) -> bytearray | None:
        """Add the next part, whose content begins at `offset` of the whole content.

        Return None for a file. The bytes of a part that is none are added to what is returned.
        """
        self._end(offset)
        if part.field not in (FILE_FIELD, DIRECTORY_FIELD):
            raise MalformedError(
                "multipart file submitted under an illegal form name, allowed values are"
                f" '{DIRECTORY_FIELD}' and '{FILE_FIELD}'"
            )
        if not part.filename:
            raise MalformedError("no filename provided")
        _check_name(part.filename)
        if part.filename in self._subfiles:
            raise MalformedError(f"two files of the form have the name '{part.filename}'")
        self._count += 1
        self._weight += (
            2 * len(part.filename.encode()) + len(part.contenttype.encode()) + _SUBFILE_OVERHEAD
        )
        if self._count > self._max_parts:
            raise MalformedError(f"an upload may have at most {self._max_parts} files")
        if self._weight > self.metadata_limit:
            raise MalformedError("the metadata of the upload is too large")
        self._is_directory |= part.field == DIRECTORY_FIELD or self._count > 1
        self._current, self._start = part, offset
        return None

    def _end(self, offset: int) -> None:
        part, self._current = self._current, None
        if part is not None:
            self._subfiles[part.filename] = Subfile(
                mode=part.mode,
                filename=part.filename,
                contenttype=part.contenttype,
                offset=self._start,
                len=offset - self._start,
            )

    def metadata(self, query: UploadQuery, length: int) -> Metadata:
        """Return the metadata of the whole form; MalformedError when it breaks a rule."""
        self._end(length)
        if not self._subfiles:
            raise MalformedError("could not find multipart file")
        filename = query.filename
        if not filename and self._count == 1:
            filename = next(iter(self._subfiles))
        _check_name(filename)
        tryfiles = query.tryfiles
        if tryfiles is None:
            has_default = query.defaultpath or query.disabledefaultpath or not self._is_directory
            tryfiles = () if has_default else DEFAULT_TRYFILES
        elif tryfiles:
            _check_tryfiles(tryfiles, self._subfiles)
        _check_defaultpath(query.defaultpath, self._subfiles)
        _check_errorpages(query.errorpages, self._subfiles)
        return Metadata(
            filename=filename,
            length=length,
            mode=query.mode,
            subfiles=self._subfiles,
            defaultpath=query.defaultpath,
            disabledefaultpath=query.disabledefaultpath,
            tryfiles=tryfiles,
            errorpages=dict(query.errorpages),
        )


def describe_upload(query: UploadQuery, parts: PartList, length: int) -> DescribedUpload:
    """Describe an upload of `length` bytes; MalformedError when it breaks a rule."""
    if query.is_form:
        metadata = parts.metadata(query, length)
    else:
        metadata = Metadata(filename=query.filename, length=length, mode=query.mode)
    encoded = encode_metadata(metadata)
    if len(encoded) > parts.metadata_limit:
        raise MalformedError("the metadata of the upload is too large")
    name = metadata.filename
    return DescribedUpload(encoded, name, count_files(name, metadata.subfiles))


def _check_name(name: str) -> None:
    try:
        check_path(name)
    except MalformedError as error:
        raise MalformedError(
            f"metadata is invalid; invalid filename provided '{name}'; {error}"
        ) from None


def _check_defaultpath(path: str, subfiles: Mapping[str, Subfile]) -> None:
    if not path:
        return
    if path[1:] not in subfiles:
        raise MalformedError(f"invalid default path provided; no such path: {path}")
    if "/" in path[1:]:
        raise MalformedError(
            "invalid default path provided; the default path must point to a file in the root"
            " directory of the skyfile"
        )


def _check_tryfiles(tryfiles: tuple[str, ...], subfiles: Mapping[str, Subfile]) -> None:
    for path in tryfiles:
        if not path:
            raise MalformedError("invalid tryfiles provided; a tryfile cannot be an empty string")
        if path.startswith("/") and path[1:] not in subfiles:
            raise MalformedError(
                f"invalid tryfiles provided; any absolute path tryfile must exist: {path}"
            )


def _check_errorpages(pages: Mapping[str, str], subfiles: Mapping[str, Subfile]) -> None:
    for code, path in pages.items():
        if int(code) < 400:
            raise MalformedError("overriding status codes under 400 is not supported")
        if int(code) > 599:
            raise MalformedError("overriding status codes over 599 is not supported")
        if not path.startswith("/"):
            raise MalformedError("all errorpages need to have absolute paths")
        if path[1:] not in subfiles:
            raise MalformedError("all errorpage files must exist")
