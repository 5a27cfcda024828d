"""Puts skyfiles into a store, as an upload does."""

from contextlib import closing

from skymount.server.storage.interfaces import ContentStore
from skymount.server.storage.skyfile_store import SHARDS, SkyfileStore
from skymount.server.storage.stored_skyfile import BuiltSkyfile
from skymount.wire import merkle
from skymount.wire.base_sector import build_fanned_out, build_inline
from skymount.wire.skylink import SECTOR_SIZE, Skylink

METADATA = b'{"filename":"a","length":2}'


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
