"""What a shell's completion offers for arguments: names of keys and of mounts, and paths.

A completer may fail with any exception; then nothing is offered.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


_PIPE_TIMEOUT = 0.5  # seconds that a configuration from a pipe may keep the shell waiting


def files(_: click.Context, __: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Let the shell complete a path."""
    return [_item(incomplete, "file")]


def directories(_: click.Context, __: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Let the shell complete the path of a directory."""
    return [_item(incomplete, "dir")]


def key_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a key in the user's keyring."""
    from skymount.keyring import Keyring, default_path

    return _beginning(incomplete, Keyring(default_path()).names())


def mount_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete NAME of a table [mounts.NAME] of the configuration."""
    from skymount.config import ConfigFile, default_path

    chosen = ctx.params.get("config_file")
    path = Path(chosen or default_path())
    found = ConfigFile.read(path, required=False, patience=_PIPE_TIMEOUT)
    return _beginning(incomplete, found.settings.get("mounts", {}))


def mounted_paths(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """Complete the path of a mount of this user; others the shell completes, as `~/sky`."""
    from skymount.fs.mountpoint import mounts_of

    paths: Iterable[str] = ()
    with suppress(OSError):
        paths = mounts_of(os.geteuid())
    found = [_item(path, "plain") for path in _beginning(incomplete, paths)]
    return found or directories(ctx, parameter, incomplete)


def _item(value: str, kind: str) -> "CompletionItem":
    from click.shell_completion import CompletionItem

    return CompletionItem(value, type=kind)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())
