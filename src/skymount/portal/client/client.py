"""Owns the library's class for one portal: every call of the contract, its arguments checked before
any request. What a call does is in the module of its group.
"""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Unpack

import trio

from skymount.errors import MalformedError, PortalTimeoutError, SkymountError, WrongTypeError
from skymount.portal import validation
from skymount.portal.client import arguments, download, hns, metadata, upload
from skymount.portal.client.base import PortalReader
from skymount.portal.client.content_check import DownloadCheck
from skymount.portal.client.download import DownloadResult
from skymount.portal.client.hns import HnsResult
from skymount.portal.client.metadata import CONTENT_LIMIT, FileContent, MetadataResult
from skymount.portal.client.registry import Registry
from skymount.portal.client.skydb import SkyDB
from skymount.portal.client.skykeys import Skykeys
from skymount.portal.client.upload import DIRECTORY_FIELD, FILE_FIELD, UploadBody, upload_query
from skymount.portal.client.upload_source import (
    Content,
    UploadSource,
    checked_name,
    mapping_sources,
)
from skymount.portal.client.verification import (
    DOMAIN_UNVERIFIABLE,
    ContentProofs,
    refuse_unverified,
)
from skymount.portal.options import ClientOptions, CommonOptions, PortalOptions
from skymount.portal.registry.ledger import Ledger
from skymount.portal.registry.revision_marks import RevisionMarks
from skymount.wire import requests
from skymount.wire.hns import parse_domain
from skymount.wire.responses import UploadResult
from skymount.wire.skykey import Kind, Skykey
from skymount.wire.skylink import Skylink

Seconds = float | str | None
"""A time in seconds, or decimal digits of one; None: the default."""


class PortalClient(PortalReader):
    """Talks to one portal. Safe for many tasks at once; an async context manager.

    Options of a call override those given at creation (contract, client conventions). Links are
    taken in every form that `parse_skylink` knows, with a path behind. Every method raises
    WrongTypeError or MalformedError for arguments that cannot be sent, before any request, OSError
    for local files, and a `PortalError` and nothing else for what happens on the wire.
    """

    def __init__(
        self,
        portal_url: str = "",
        *,
        ledger: Ledger | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """Select a portal, as `PortalReader`.

        Of registry entries nothing older is believed than what was seen before: by this client,
        and with a `ledger` by all that use it. StorageError when it cannot be read.
        """
        if not isinstance(ledger, Ledger | None):
            raise WrongTypeError(f"ledger must be a Ledger, not {type(ledger).__name__}")
        super().__init__(portal_url, **options)
        self._read_with(RevisionMarks(ledger))

    def _select(self, options: PortalOptions) -> None:
        super()._select(options)
        self._read_with(RevisionMarks())

    def _read_with(self, marks: RevisionMarks) -> None:
        self._proofs = ContentProofs(self.transport, marks)
        self._registry = Registry(self.transport, marks)
        self._db = SkyDB(self.transport, self._registry, self._proofs)

    @property
    def registry(self) -> Registry:
        """The registry: get_entry, set_entry, get_entry_url, get_entry_link."""
        return self._registry

    @property
    def db(self) -> SkyDB:
        """SkyDB: get_json, set_json, delete_json."""
        return self._db

    # --- upload (contract, endpoints 1 and 2)

    async def upload_file(
        self,
        file: Content,
        *,
        custom_filename: str = "",
        portal_file_field_name: str = FILE_FIELD,
        timeout_seconds: Seconds = None,
        skykey_name: str = "",
        skykey_id: str = "",
        dry_run: bool = False,
        **options: Unpack[CommonOptions],
    ) -> UploadResult:
        """Upload a file: a path, a binary file object, or bytes with a `custom_filename`.

        ``str()`` of the result is ``<scheme>://<skylink>``. `timeout_seconds` bounds the whole
        upload. With a skykey the portal encrypts; with `dry_run` it only tells the skylink.
        """
        call = self.options.overridden(**options)
        name = validation.text(custom_filename, "custom_filename")
        field = checked_name(validation.text(portal_file_field_name, "portal_file_field_name"))
        query = upload_query(
            skykey_name=validation.text(skykey_name, "skykey_name"),
            skykey_id=validation.text(skykey_id, "skykey_id"),
            dry_run=validation.flag(dry_run, "dry_run"),
        )
        limit = arguments.optional_seconds(timeout_seconds, arguments.UPLOAD_TIMEOUT_LIMIT)
        source = await trio.to_thread.run_sync(UploadSource.of, file, name)
        body = UploadBody([source], field=field or FILE_FIELD, query=query)
        with _at_most(limit, call):
            return await upload.send(self.transport, body, call.with_extra_time(limit))

    async def upload_directory(
        self,
        directory: str | os.PathLike[str] | Mapping[str, Content],
        *,
        custom_dirname: str = "",
        portal_directory_file_field_name: str = DIRECTORY_FIELD,
        timeout_seconds: Seconds = None,
        skykey_name: str = "",
        skykey_id: str = "",
        default_path: str = "",
        disable_default_path: bool = False,
        try_files: Sequence[str] | None = None,
        error_pages: Mapping[str, str] | None = None,
        dry_run: bool = False,
        **options: Unpack[CommonOptions],
    ) -> UploadResult:
        """Upload a directory, or a mapping of relative paths to files, bytes or file objects.

        `custom_dirname` is needed with a mapping, and else replaces the directory's own name.
        `default_path` and the like say what a browser is shown (wire notes 3.2). Otherwise as
        `upload_file`.
        """
        call = self.options.overridden(**options)
        field = checked_name(
            validation.text(portal_directory_file_field_name, "portal_directory_file_field_name")
        )
        query = upload_query(
            skykey_name=validation.text(skykey_name, "skykey_name"),
            skykey_id=validation.text(skykey_id, "skykey_id"),
            default_path=validation.text(default_path, "default_path"),
            disable_default_path=validation.flag(disable_default_path, "disable_default_path"),
            try_files=None if try_files is None else validation.texts(try_files, "try_files"),
            error_pages=arguments.text_mapping(
                {} if error_pages is None else error_pages, "error_pages"
            ),
            dry_run=validation.flag(dry_run, "dry_run"),
        )
        limit = arguments.optional_seconds(timeout_seconds, arguments.UPLOAD_TIMEOUT_LIMIT)
        name = validation.text(custom_dirname, "custom_dirname")
        body = await trio.to_thread.run_sync(
            _directory_body, directory, name, field or DIRECTORY_FIELD, query
        )
        with _at_most(limit, call):
            return await upload.send(self.transport, body, call.with_extra_time(limit))

    async def send_upload(self, body: UploadBody, **options: Unpack[CommonOptions]) -> UploadResult:
        """Send an upload that is prepared already."""
        return await upload.send(self.transport, body, self.options.overridden(**options))

    # --- content (contract, endpoints 3 and 4)

    async def download_file(
        self,
        destination: str | os.PathLike[str],
        skylink: str | Skylink,
        *,
        path: str = "",
        timeout_seconds: Seconds = None,
        skykey_name: str = "",
        skykey_id: str = "",
        archive: str = "",
        on_progress: download.Progress | None = None,
        **options: Unpack[CommonOptions],
    ) -> DownloadResult:
        """Download content into a file, which appears when it is complete.

        What was there stays until then; a symbolic link is followed, a directory or device refused.
        A directory comes as a zip, or as what `archive` says: ``tar``, ``targz``, ``concat``.
        Bytes that are not the skylink's raise BadContentError; what cannot be compared with it is
        refused, or the result says so (`verify`).
        `timeout_seconds`, at most 900, is how long the portal may look for the content. Skykeys
        are sent along; portals of today find the right one by themselves.
        """
        call = self.options.overridden(**options)
        limit = arguments.optional_seconds(timeout_seconds, arguments.DOWNLOAD_TIMEOUT_LIMIT)
        target, inner = arguments.link(skylink, path)
        form = validation.text(archive, "archive")
        ask = partial(
            requests.download,
            path=inner,
            archive=form,
            timeout=limit,
            with_metadata=False,
            skykey_name=validation.text(skykey_name, "skykey_name"),
            skykey_id=validation.text(skykey_id, "skykey_id"),
        )
        request = ask(target)
        place = arguments.local_path(destination, "destination")
        progress = validation.callback(on_progress, "on_progress")
        patient = call.with_extra_time(limit)

        async def compare() -> tuple[requests.Request, DownloadCheck]:
            found, check, _ = await self._proofs.begin(target, inner, patient, form)
            return ask(found), check

        return await download.to_file(self.transport, request, place, patient, progress, compare)

    async def get_file_content(
        self,
        skylink: str | Skylink,
        *,
        path: str = "",
        timeout_seconds: Seconds = None,
        skykey_name: str = "",
        skykey_id: str = "",
        max_size: int = CONTENT_LIMIT,
        **options: Unpack[CommonOptions],
    ) -> FileContent:
        """Download a file into memory; JSON is parsed. BadContentError beyond `max_size` bytes.

        It is compared with its skylink as by `download_file`.
        """
        call = self.options.overridden(**options)
        limit = arguments.optional_seconds(timeout_seconds, arguments.DOWNLOAD_TIMEOUT_LIMIT)
        target, inner = arguments.link(skylink, path)
        ask = partial(
            requests.download,
            path=inner,
            timeout=limit,
            skykey_name=validation.text(skykey_name, "skykey_name"),
            skykey_id=validation.text(skykey_id, "skykey_id"),
        )
        ask(target)  # for what is wrong with it
        size = validation.integer(max_size, "max_size")
        patient = call.with_extra_time(limit)
        found, check, proof = await self._proofs.begin(target, inner, patient)
        return await metadata.get_file_content(
            self.transport, found, ask(found), inner, size, patient, check, proof
        )

    async def get_metadata(
        self, skylink: str | Skylink, *, path: str = "", **options: Unpack[CommonOptions]
    ) -> MetadataResult:
        """Ask for the metadata, content type and skylink of content.

        The metadata are the proved ones, or the result says that they are not (`verify`).
        """
        call = self.options.overridden(**options)
        target, inner = arguments.link(skylink, path)
        found, proof, _ = await self._proofs.find(target, call)
        return await metadata.get_metadata(self.transport, found, inner, call, proof)

    async def open_file(
        self,
        skylink: str | Skylink,
        *,
        path: str = "",
        download: bool = False,
        **options: Unpack[CommonOptions],
    ) -> str:
        """Open content in the system's browser; return the URL. SkymountError without a browser."""
        url = self.get_skylink_url(skylink, path=path, download=download, **options)
        await _open_browser(url)
        return url

    def get_skylink_url(
        self,
        skylink: str | Skylink,
        *,
        path: str = "",
        download: bool = False,
        subdomain: bool = False,
        **options: Unpack[CommonOptions],
    ) -> str:
        """Return ``{base_url}/<skylink>[/<path>]``; with `download` one that forces a download."""
        target, inner = arguments.link(skylink, path)
        return hns.skylink_url(
            self.options.overridden(**options),
            target,
            inner,
            download=validation.flag(download, "download"),
            subdomain=validation.flag(subdomain, "subdomain"),
        )

    # --- names (contract, endpoints 11 and 12)

    async def resolve_hns(self, domain: str, **options: Unpack[CommonOptions]) -> HnsResult:
        """Ask what a domain resolves to; NotFoundError for an unknown one."""
        call = self.options.overridden(**options)
        return await hns.resolve(self.transport, _domain(domain), call)

    async def download_file_hns(
        self,
        destination: str | os.PathLike[str],
        domain: str,
        *,
        path: str = "",
        timeout_seconds: Seconds = None,
        skykey_name: str = "",
        skykey_id: str = "",
        on_progress: download.Progress | None = None,
        **options: Unpack[CommonOptions],
    ) -> DownloadResult:
        """Download what a domain resolves to, as `download_file`; nothing of it can be proved."""
        call = self.options.overridden(**options)
        limit = arguments.optional_seconds(timeout_seconds, arguments.DOWNLOAD_TIMEOUT_LIMIT)
        name = _domain(domain)
        request = requests.hns_download(
            name,
            arguments.inner_path(path),
            timeout=limit,
            skykey_name=validation.text(skykey_name, "skykey_name"),
            skykey_id=validation.text(skykey_id, "skykey_id"),
        )
        place = arguments.local_path(destination, "destination")
        progress = validation.callback(on_progress, "on_progress")
        refuse_unverified(call, name, DOMAIN_UNVERIFIABLE)
        return await download.to_file(
            self.transport, request, place, call.with_extra_time(limit), progress
        )

    async def open_file_hns(
        self,
        domain: str,
        *,
        path: str = "",
        download: bool = False,
        **options: Unpack[CommonOptions],
    ) -> str:
        """Open what a domain resolves to in the system's browser; return the URL."""
        url = self.get_hns_url(domain, path=path, download=download, **options)
        await _open_browser(url)
        return url

    def get_hns_url(
        self,
        domain: str,
        *,
        path: str = "",
        download: bool = False,
        subdomain: bool = False,
        **options: Unpack[CommonOptions],
    ) -> str:
        """Return ``{base_url}/hns/<domain>[/<path>]``."""
        return hns.hns_url(
            self.options.overridden(**options),
            _domain(domain),
            arguments.inner_path(path),
            download=validation.flag(download, "download"),
            subdomain=validation.flag(subdomain, "subdomain"),
        )

    def get_hnsres_url(
        self, domain: str, *, download: bool = False, **options: Unpack[CommonOptions]
    ) -> str:
        """Return ``{base_url}/hnsres/<domain>``."""
        call = self.options.overridden(**options)
        found = validation.flag(download, "download")
        return hns.hnsres_url(call, _domain(domain), download=found)

    # --- skykeys, at `node_url` (contract, endpoints 7 to 10)

    async def create_skykey(
        self,
        name: str,
        type: str = Kind.PRIVATE.value,  # noqa: A002 - the contract's name
        **options: Unpack[CommonOptions],
    ) -> Skykey:
        """Make a skykey of type ``public-id`` or ``private-id``."""
        return await Skykeys(self.node).create(name, type, self.options.overridden(**options))

    async def add_skykey(self, skykey: str, **options: Unpack[CommonOptions]) -> None:
        """Hand over a skykey, written ``skykey:<base64>?name=<name>``."""
        await Skykeys(self.node).add(skykey, self.options.overridden(**options))

    async def get_skykey_by_name(self, name: str, **options: Unpack[CommonOptions]) -> Skykey:
        """Return the skykey of that name; NotFoundError when there is none."""
        return await Skykeys(self.node).get_by_name(name, self.options.overridden(**options))

    async def get_skykey_by_id(
        self,
        id: str,  # noqa: A002 - the contract's name
        **options: Unpack[CommonOptions],
    ) -> Skykey:
        """Return the skykey of that id; NotFoundError when there is none."""
        return await Skykeys(self.node).get_by_id(id, self.options.overridden(**options))

    async def get_skykeys(self, **options: Unpack[CommonOptions]) -> tuple[Skykey, ...]:
        """Return every skykey, in no particular order."""
        return await Skykeys(self.node).list(self.options.overridden(**options))

    async def delete_skykey(
        self,
        *,
        name: str = "",
        id: str = "",  # noqa: A002 - as in `get_skykey_by_id`
        **options: Unpack[CommonOptions],
    ) -> None:
        """Make the node forget a skykey: exactly one of `name` and `id`."""
        await Skykeys(self.node).delete(name, id, self.options.overridden(**options))


def _domain(value: object) -> str:
    return parse_domain(validation.text(value, "domain"))


def _directory_body(
    directory: object, name: str, field: str, query: Sequence[tuple[str, str]]
) -> UploadBody:
    if isinstance(directory, Mapping):
        if not name:
            raise MalformedError("a mapping has no name: give a custom_dirname with it")
        sources = mapping_sources(directory)
        if not sources:
            raise MalformedError("there is no file in the mapping")
        return UploadBody(sources, field=field, dirname=checked_name(name), query=query)
    path = arguments.local_path(directory, "directory")
    if not path.is_dir():
        path.stat()  # says it when nothing is there
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path))
    return UploadBody.of_path(path, name=name, field=field, query=query)


@contextmanager
def _at_most(seconds: int | None, call: PortalOptions) -> Iterator[None]:
    """PortalTimeoutError when what is inside takes longer."""
    if seconds is None:
        yield
        return
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise PortalTimeoutError(f"not done in {seconds} s", method="POST", url=call.url)


async def _open_browser(url: str) -> None:
    import webbrowser

    try:
        is_open = await trio.to_thread.run_sync(webbrowser.open, url, abandon_on_cancel=True)
    except webbrowser.Error:
        is_open = False
    if not is_open:
        raise SkymountError(f"no browser can be started; the address is {url}")
