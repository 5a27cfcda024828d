"""Documents of `skydb` as commands read them: the path of one, and what its entry leads to."""

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from skymount.cli.key_argument import EntryArgument
from skymount.errors import MalformedError, NotFoundError
from skymount.wire.skydb_document import decode_document

if TYPE_CHECKING:
    from skymount.cli.session import ContentSession
    from skymount.content.fetch.reader import ContentReader
    from skymount.content.model.skyfile import Skyfile
    from skymount.portal.ledger.revision_marks import EntryId
    from skymount.wire.skylink import Skylink

_DIRECTORY = "skydb/"  # as in a mount
_SUFFIX = b".json"
_READ_SIZE = 1 << 20  # bytes of a document that are read at once


def parse_skydb_path(text: str) -> EntryArgument | None:
    """Read ``skydb/KEY/DATAKEY.json``, or the path of such a file inside a mount; None for anything
    else, MalformedError if it names no document.
    """
    from skymount.cli.link_target import paths_in_mounts
    from skymount.fs.registry.file_names import KeyFileNames

    if text.startswith(_DIRECTORY):
        path = text.removeprefix(_DIRECTORY)
    else:
        path = next((rest for kind, rest in paths_in_mounts(text) if kind == "skydb"), "")
        if not path:
            return None
    owner, _, name = path.partition("/")
    if not owner or not name or "/" in name:
        raise MalformedError(f"{text}: a document is skydb/KEY/DATAKEY.json")
    try:
        found = KeyFileNames(_SUFFIX).parse(os.fsencode(name))
    except MalformedError as error:
        raise MalformedError(f"{text}: {error}") from None
    if found.data_key is None:
        return EntryArgument(owner, found.tweak.hex(), hashed=True)
    return EntryArgument(owner, found.data_key, hashed=False)


async def find_document(
    session: "ContentSession", entry: "EntryId", name: str
) -> "tuple[Skylink, int]":
    """Return the v1 skylink that an entry holds, and the entry's revision; messages use `name`."""
    from skymount.wire.registry_entry import linked_skylink

    registry = await session.registry.open()
    signed = (await registry.read(entry)).signed
    if signed is None:
        raise NotFoundError(f"{name!r}: there is no such document", status=404)
    if signed.entry.is_deleted:
        raise NotFoundError(f"{name!r}: it was deleted", status=404)
    skylink = linked_skylink(signed.entry.data)
    if skylink is None or skylink.version != 1:
        raise no_document(name)
    return skylink, signed.entry.revision


def no_document(name: str) -> click.ClickException:
    """Return the error of an entry that holds no document."""
    return click.ClickException(
        f"{name!r}: this registry entry is not a JSON document; see it with `skymount registry get`"
    )


async def read_document(reader: "ContentReader", skyfile: "Skyfile") -> Any:
    """Return the document that some content is; MalformedError if it is none."""
    from skymount.concurrency import off_loop

    body = bytearray()
    while len(body) < skyfile.size:
        size = min(_READ_SIZE, skyfile.size - len(body))
        body += await reader.read(skyfile, len(body), size)
    return await off_loop(partial(decode_document, bytes(body)), len(body))
