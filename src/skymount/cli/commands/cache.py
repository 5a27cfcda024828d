"""``skymount cache``: content that mounts keep on disk."""

from typing import TYPE_CHECKING

import click

from skymount.cli.options import load_settings
from skymount.cli.output import emit, json_option, warn
from skymount.wording import readable_size

if TYPE_CHECKING:
    from skymount.content.cache.block_store import BlockStore


@click.group()
def cache() -> None:
    """Inspect and clear the content that mounts keep on disk. Mounts may run meanwhile.

    The limit is disk_cache, in the configuration or of each mount.

    \b
    Examples:
      skymount cache info
      skymount cache clear
    """


@cache.command()
@json_option
def info(as_json: bool) -> None:
    """Print where the cache is, its size, and its limit.

    The limit is the configured one. That of a mount is in its .skymount/status.json, as the size of
    disk_cache.

    \b
    Example:
      skymount cache info --json | jq .bytes
    """
    size = load_settings().disk_cache
    store = _existing()
    found = store.info() if store else None
    blocks, used = (found.blocks, found.bytes) if found else (0, 0)
    bound = f"of {readable_size(size)} (as configured)" if size else "(disk_cache is off)"
    line = f"{_blocks(blocks)}, {readable_size(used)} {bound}"
    _report(store, as_json, [str(store and store.root), line], size=size, blocks=blocks, bytes=used)


@cache.command()
@json_option
def clear(as_json: bool) -> None:
    """Remove everything from the cache.

    What unfinished runs of `skymount pin` have kept is removed, too.

    \b
    Example:
      skymount cache clear
    """
    from skymount.content.replication.spool import clear_spools, default_place

    store = _existing()
    clear_spools(default_place())
    gone = store.clear() if store else None
    blocks, size = (gone.blocks, gone.bytes) if gone else (0, 0)
    line = f"{_blocks(blocks)} removed, {readable_size(size)}"
    _report(store, as_json, [line], blocks=blocks, bytes=size)


@cache.command()
@json_option
def verify(as_json: bool) -> None:
    """Read the whole cache, and remove damaged blocks.

    A mount never uses a damaged block, and removes it by itself. Many damaged blocks are a sign of
    a failing disk.

    \b
    Example:
      skymount cache verify
    """
    store = _existing()
    good, removed = store.verify() if store else (0, 0)
    line = f"{_blocks(good)} good, {removed} damaged and removed"
    _report(store, as_json, [line], good=good, removed=removed)
    if removed:
        warn(f"{_blocks(removed)} damaged: is the disk failing?")


def _existing() -> "BlockStore | None":
    from skymount.content.cache.block_store import BlockStore, default_path

    return BlockStore.existing(default_path(), 0)


def _report(store: "BlockStore | None", as_json: bool, lines: list[str], **facts: int) -> None:
    path = str(store.root) if store else None
    emit({"path": path, **facts}, as_json, lines if store else ["nothing is cached on disk"])


def _blocks(count: int) -> str:
    return f"{count} block{'' if count == 1 else 's'}"
