"""Puts skyfiles into a store, as an upload does."""

from skymount.server.storage.skyfile_store import PAYLOAD, SHARDS, SkyfileStore
from skymount.wire import merkle
from skymount.wire.base_sector import build_fanned_out, build_inline
from skymount.wire.skylink import SECTOR_SIZE, Skylink

METADATA = b'{"filename":"a","length":2}'


def put(store: SkyfileStore, payload: bytes, metadata: bytes = METADATA) -> Skylink:
    upload = store.begin()
    spilled: list[bytes] = []
    if len(payload) + len(metadata) < SECTOR_SIZE - 99:
        base = build_inline(metadata, payload)
    else:
        (upload / PAYLOAD).write_bytes(payload)
        chunks = range(0, len(payload), SECTOR_SIZE)
        roots = [merkle.sector_root(payload[at : at + SECTOR_SIZE]) for at in chunks]
        base, spilled = build_fanned_out(len(payload), b"".join(roots), metadata)
    skylink = Skylink.v1(merkle.sector_root(base), len(base))
    store.commit(upload, skylink, base, spilled)
    return skylink


def skylinks_of(store: SkyfileStore) -> list[Skylink]:
    return [skylink for shard in SHARDS for skylink in store.skylinks(shard)]
