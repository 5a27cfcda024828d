"""Puts skyfiles into a store, as an upload does, and changes them on disk by hand."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from skymount.server.storage.interfaces import ContentStore
from skymount.server.storage.local.skylink_keys import to_key
from skymount.server.storage.skyfile_store import SHARDS, SkyfileStore
from skymount.server.storage.stored_skyfile import BuiltSkyfile
from skymount.wire import merkle
from skymount.wire.base_sector import build_fanned_out, build_inline
from skymount.wire.skylink import SECTOR_SIZE, Skylink

METADATA = b'{"filename":"a","length":2}'
IN_FILES = 40_000
"""Bytes of content that is too large for the database of small skyfiles."""


def put(store: ContentStore, payload: bytes, metadata: bytes = METADATA) -> Skylink:
    with closing(store.begin()) as upload:
        if len(payload) + len(metadata) < SECTOR_SIZE - 99:
            built = BuiltSkyfile(build_inline(metadata, payload))
        else:
            roots = []
            for index, at in enumerate(range(0, len(payload), SECTOR_SIZE)):
                sector = payload[at : at + SECTOR_SIZE]
                roots.append(merkle.sector_root(sector))
                upload.put_sector(index, roots[-1], sector)
            base, spilled = build_fanned_out(len(payload), b"".join(roots), metadata)
            built = BuiltSkyfile(base, tuple(spilled), b"".join(roots))
        skylink = Skylink.v1(merkle.sector_root(built.base), len(built.base))
        upload.publish(skylink, built)
    return skylink


def skylinks_of(store: SkyfileStore) -> list[Skylink]:
    return [skylink for shard in SHARDS for skylink in store.skylinks(shard)]


def directory_of(data: Path, link: Skylink | str) -> Path:
    """Return where the files of a skyfile are, if it is not small."""
    skylink = Skylink(str(link))
    return data / "v1/skyfiles" / f"{skylink.root[0]:02x}" / str(skylink)


def damage(data: Path, link: Skylink | str, change: Callable[[bytes], bytes]) -> None:
    """Change the base sector of a skyfile."""
    if directory_of(data, link).exists():
        base = directory_of(data, link) / "base"
        base.write_bytes(change(base.read_bytes()))
        return
    asked = "SELECT base FROM skyfiles WHERE skylink = :skylink"
    ((content,),) = _change_small(data, link, asked)
    _change_small(
        data,
        link,
        "UPDATE skyfiles SET base = :base WHERE skylink = :skylink",
        base=change(content),
    )


def remove_by_hand(data: Path, link: Skylink | str) -> None:
    if directory_of(data, link).exists():
        shutil.rmtree(directory_of(data, link))
    else:
        _change_small(data, link, "DELETE FROM skyfiles WHERE skylink = :skylink")


def set_time(data: Path, link: Skylink | str, stored: float) -> None:
    if directory_of(data, link).exists():
        os.utime(directory_of(data, link) / "base", (stored, stored))
    else:
        changed = "UPDATE skyfiles SET stored = :stored WHERE skylink = :skylink"
        _change_small(data, link, changed, stored=stored)


def _change_small(
    data: Path, link: Skylink | str, statement: str, **values: float | bytes
) -> list[tuple[bytes]]:
    values["skylink"] = to_key(Skylink(str(link)))
    with closing(sqlite3.connect(data / "v1/small.sqlite3")) as database, database:
        return database.execute(statement, values).fetchall()
