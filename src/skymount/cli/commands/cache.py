"""``skymount cache``: what is kept of content on this machine."""

import os
from typing import TYPE_CHECKING

import click

from skymount.cli.output import emit, json_option, warn

if TYPE_CHECKING:
    from skymount.content.cache.block_store import BlockStore

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@click.group()
def cache() -> None:
    """Look after the content that mounts keep on disk. Mounts may run meanwhile.

    How much they may keep is disk_cache, of the configuration or of each mount.

    \b
    Examples:
      skymount cache info
      skymount cache clear
    """


@cache.command()
@json_option
def info(as_json: bool) -> None:
    """Say where the cache is, how much is in it, and how much may be.

    The bound is the configuration's. A mount may have been given another one: that is in its
    .skymount/status.json, as the size of disk_cache.

    \b
    Example:
      skymount cache info --json | jq .bytes
    """
    size, store = _configured(), _existing()
    if store is None:
        fact = _facts(None, size=size, blocks=0, bytes=0)
        emit(fact, as_json, [_NOTHING])
        return
    found = store.info()
    bound = f"of {_readable(size)} (as configured)" if size else "(disk_cache is off)"
    emit(
        _facts(store, size=size, blocks=found.blocks, bytes=found.bytes),
        as_json,
        [str(store.root), f"{_blocks(found.blocks)}, {_readable(found.bytes)} {bound}"],
    )


@cache.command()
@json_option
def clear(as_json: bool) -> None:
    """Remove all that is kept. What is read later is fetched, and kept, anew.

    \b
    Example:
      skymount cache clear
    """
    store = _existing()
    if store is None:
        emit(_facts(None, blocks=0, bytes=0), as_json, [_NOTHING])
        return
    gone = store.clear()
    line = f"{_blocks(gone.blocks)} removed, {_readable(gone.bytes)}"
    emit(_facts(store, blocks=gone.blocks, bytes=gone.bytes), as_json, [line])


@cache.command()
@json_option
def verify(as_json: bool) -> None:
    """Read all that is kept, and remove what is damaged.

    A mount never uses what is damaged, and removes it by itself; much of it tells of a failing
    disk.

    \b
    Example:
      skymount cache verify
    """
    store = _existing()
    if store is None:
        emit(_facts(None, good=0, removed=0), as_json, [_NOTHING])
        return
    good, removed = store.verify()
    line = f"{_blocks(good)} good, {removed} damaged and removed"
    emit(_facts(store, good=good, removed=removed), as_json, [line])
    if removed:
        warn(f"{_blocks(removed)} damaged: is the disk failing?")


_NOTHING = "nothing is cached on disk"


def _configured() -> int:
    """Return the bound; a mount with a table of its own may have another one."""
    from skymount import config

    return config.load({}, environ=os.environ).disk_cache


def _existing() -> "BlockStore | None":
    from skymount.content.cache.block_store import BlockStore, default_path

    return BlockStore.existing(default_path(), 0)


def _facts(store: "BlockStore | None", **more: int) -> dict[str, str | int | None]:
    return {"path": None if store is None else str(store.root), **more}


def _blocks(count: int) -> str:
    return f"{count} block{'' if count == 1 else 's'}"


def _readable(size: int) -> str:
    """Write a number of bytes as people do."""
    power = max(0, min(len(_UNITS) - 1, (size.bit_length() - 1) // 10))
    shown = size / (1 << 10 * power)
    return f"{shown:.1f}".removesuffix(".0") + f" {_UNITS[power]}"
