"""Skylinks as keys of a database."""

import sqlite3

from skymount.errors import MalformedError
from skymount.wire.skylink import Skylink


def to_key(skylink: Skylink) -> bytes:
    """Return a skylink with its root first, so that one index finds it by its root too."""
    raw = bytes(skylink)
    return raw[2:] + raw[:2]


def from_key(key: bytes) -> Skylink:
    """Return the skylink of a key; ValueError if it is none, so the database is damaged."""
    try:
        return Skylink.from_bytes(key[-2:] + key[:-2])
    except MalformedError as error:  # of the file, not of what was asked
        raise ValueError(str(error)) from None


def read_keys(database: sqlite3.Connection, shard: int) -> set[bytes]:
    """Return the keys in a table `skyfiles` of skylinks whose Merkle root begins with this byte."""
    asked = "SELECT skylink FROM skyfiles WHERE skylink >= ? AND skylink <= ?"
    values = (bytes([shard]), bytes([shard]) + b"\xff" * 34)
    return {key for (key,) in database.execute(asked, values)}
