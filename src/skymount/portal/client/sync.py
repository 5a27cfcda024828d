"""The synchronous client: every call of `PortalClient`, run by trio in a thread of its own."""

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Never, ParamSpec, Self, TypeVar, Unpack

from skymount.portal.client.client import PortalClient
from skymount.portal.client.registry import Registry
from skymount.portal.client.skydb import SkyDB
from skymount.portal.ledger.ledger import Ledger
from skymount.settings import ClientOptions, PortalOptions
from skymount.trio_thread import TrioThread
from skymount.wire.dialect import Dialect

P = ParamSpec("P")
T = TypeVar("T")


def _waits(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Make a method that waits for an asynchronous one, with its arguments and its words."""

    @wraps(method)
    def call(self: "_SyncFacade", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(partial(method, self._target, *args, **kwargs))

    return call


def _calls(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make a method that calls one which does not wait."""

    @wraps(method)
    def call(self: "_SyncFacade", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self._target, *args, **kwargs)

    return call


class _SyncFacade:
    """The methods of an asynchronous object, without async."""

    def __init__(self, target: Any, thread: TrioThread[PortalClient]) -> None:
        self._target = target
        self._thread = thread


class SyncRegistry(_SyncFacade):
    """`Registry` without async."""

    fetch = _waits(Registry.fetch)
    get_entry = _waits(Registry.get_entry)
    get_entry_link = _calls(Registry.get_entry_link)
    get_entry_url = _calls(Registry.get_entry_url)
    next_revision = _waits(Registry.next_revision)
    post = _waits(Registry.post)
    read = _waits(Registry.read)
    revision_after = _waits(Registry.revision_after)
    set = _waits(Registry.set)
    set_entry = _waits(Registry.set_entry)


class SyncSkyDB(_SyncFacade):
    """`SkyDB` without async."""

    delete_json = _waits(SkyDB.delete_json)
    get_json = _waits(SkyDB.get_json)
    set_json = _waits(SkyDB.set_json)


class SyncPortalClient(_SyncFacade):
    """`PortalClient` without async: the same names, arguments, results and errors.

    A context manager; `close` it otherwise, or drop it. Safe for many threads at once. Progress
    callbacks run in the client's own thread, and cannot make calls.
    """

    _target: PortalClient

    add_skykey = _waits(PortalClient.add_skykey)
    base_sector = _waits(PortalClient.base_sector)
    connect = _waits(PortalClient.connect)
    create_skykey = _waits(PortalClient.create_skykey)
    delete_skykey = _waits(PortalClient.delete_skykey)
    download_file = _waits(PortalClient.download_file)
    download_file_hns = _waits(PortalClient.download_file_hns)
    get_file_content = _waits(PortalClient.get_file_content)
    get_metadata = _waits(PortalClient.get_metadata)
    get_skykey_by_id = _waits(PortalClient.get_skykey_by_id)
    get_skykey_by_name = _waits(PortalClient.get_skykey_by_name)
    get_skykeys = _waits(PortalClient.get_skykeys)
    head = _waits(PortalClient.head)
    metadata_into = _waits(PortalClient.metadata_into)
    open_file = _waits(PortalClient.open_file)
    open_file_hns = _waits(PortalClient.open_file_hns)
    raw_metadata = _waits(PortalClient.raw_metadata)
    resolve = _waits(PortalClient.resolve)
    resolve_hns = _waits(PortalClient.resolve_hns)
    sample = _waits(PortalClient.sample)
    sector = _waits(PortalClient.sector)
    send_upload = _waits(PortalClient.send_upload)
    upload_directory = _waits(PortalClient.upload_directory)
    upload_file = _waits(PortalClient.upload_file)
    get_hns_url = _calls(PortalClient.get_hns_url)
    get_hnsres_url = _calls(PortalClient.get_hnsres_url)
    get_skylink_url = _calls(PortalClient.get_skylink_url)
    set_credentials = _calls(PortalClient.set_credentials)

    def __init__(
        self,
        portal_url: str = "",
        *,
        ledger: Ledger | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        client = PortalClient(portal_url, ledger=ledger, **options)
        super().__init__(client, TrioThread(client, "client"))

    @property
    def url(self) -> str:
        """The portal's address, without credentials."""
        return self._target.url

    @property
    def dialect(self) -> Dialect:
        return self._target.dialect

    @property
    def round_trip(self) -> float | None:
        """The lowest recent time from a request to its response, in seconds."""
        return self._target.round_trip

    @property
    def options(self) -> PortalOptions:
        return self._target.options

    @property
    def registry(self) -> SyncRegistry:
        """The registry: get_entry, set_entry, get_entry_url, get_entry_link."""
        return SyncRegistry(self._target.registry, self._thread)

    @property
    def db(self) -> SyncSkyDB:
        """SkyDB: get_json, set_json, delete_json."""
        return SyncSkyDB(self._target.db, self._thread)

    def __repr__(self) -> str:
        return f"Sync{self._target!r}"

    def __reduce__(self) -> Never:
        raise TypeError(
            "a client cannot be pickled: pass its address and options on, and make one there"
        )

    def close(self) -> None:
        """Close every connection and end the thread. Calls that wait raise RuntimeError."""
        self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
