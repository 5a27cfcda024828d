"""``skymount portal``: run the embedded portal."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import click

from skymount.cli.commands.portal_data import backup, storage
from skymount.cli.commands.portal_data.storage_options import parse_storage, storage_options
from skymount.cli.commands.portal_hns import hns
from skymount.cli.options import PathType, load_settings
from skymount.cli.verbose_option import verbose_option
from skymount.errors import SkymountError


class _Address(click.ParamType[tuple[str, int]]):
    """HOST:PORT, with an IPv6 host in brackets; or unix:PATH."""

    name = "host:port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        if str(value).startswith("unix:") and value != "unix:":
            return f"unix:{os.path.abspath(str(value)[5:])}", 0
        host, colon, port = str(value).rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            self.fail(f"{value!r} is not HOST:PORT, nor unix:PATH", param, ctx)
        return host.removeprefix("[").removesuffix("]"), int(port)


def _how_to_reach(url: str) -> str:
    """Return the end of a line about a Unix socket; of other addresses none is needed."""
    path = url.removeprefix("unix:")
    if path == url:
        return ""
    option = "--abstract-unix-socket" if path.startswith("@") else "--unix-socket"
    return f" (curl {option} {quote(path.removeprefix('@'))} http://localhost/)"


class _Size(click.ParamType[int]):
    """A number of bytes, as in the configuration."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        from skymount.values import parse_size

        try:
            return parse_size(value)
        except SkymountError as error:
            self.fail(str(error), param, ctx)


class _CacheSize(_Size):
    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        from skymount.content.cache.block_store import MIN_SIZE

        size = super().convert(value, param, ctx)
        if size < MIN_SIZE:
            self.fail(f"{value!r} is too little, give it {MIN_SIZE >> 20} MiB", param, ctx)
        return size


@click.group()
def portal() -> None:
    """Run a content portal on this machine.

    \b
    Examples:
      skymount portal serve
      skymount portal hns set example SKYLINK
    """


portal.add_command(hns)
for command in storage.COMMANDS:
    portal.add_command(command)
portal.add_command(backup.export)
portal.add_command(backup.import_)


@portal.command()
@click.option(
    "--listen",
    type=_Address(),
    default="127.0.0.1:4280",
    show_default=True,
    help="Address to listen on; port 0 picks a free one. Or a Unix socket, unix:PATH.",
)
@storage_options
@click.option(
    "--header-limit",
    type=_Size(),
    default="8 MiB",
    show_default=True,
    metavar="SIZE",
    help="Leave metadata longer than this out of the response header.",
)
@click.option(
    "--max-upload",
    type=_Size(),
    default="5000 MiB",
    show_default=True,
    metavar="SIZE",
    help="Refuse a request body longer than this.",
)
@click.option(
    "--max-storage",
    callback=storage.size,
    metavar="SIZE",
    help="Refuse uploads beyond this, like 100G, on disk. Default: no limit.",
)
@click.option(
    "--keep",
    callback=storage.duration,
    metavar="DURATION",
    help="Remove what was stored longer ago, like 30d, and is not pinned. Default: never.",
)
@click.option(
    "--password-file",
    type=PathType(path_type=Path),
    metavar="FILE",
    help="Require the password in this file, which only its owner may read, for all changes. "
    "Without it the variable SKYMOUNT_PORTAL_PASSWORD is used.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Listen without a password even where other machines can connect.",
)
@click.option(
    "--require-agent",
    is_flag=True,
    help="Refuse requests without the agent token in User-Agent, except downloads.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="Answer to this host name too; repeat it for further ones.",
)
@click.option(
    "--allow-origin",
    "allow_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Let web pages of this origin do everything, or all pages with '*'; repeatable.",
)
@click.option(
    "--public-url",
    default="",
    metavar="URL",
    help="Tell clients this address of the portal, that of a proxy before it.",
)
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Believe what the proxy at this address, or in this network, says about its clients "
    "(X-Forwarded-For, X-Forwarded-Proto); repeatable.",
)
@click.option(
    "--content-host",
    default="",
    metavar="NAME",
    help="Give content hosts of its own below this name in browsers, by a wildcard record of DNS.",
)
@click.option(
    "--noindex",
    is_flag=True,
    help="Ask search engines to list nothing of this portal: by /robots.txt and a header.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="NUMBER",
    help="Serve by so many processes; needs --store and --database.",
)
@click.option(
    "--upstream",
    multiple=True,
    metavar="URL",
    help="Fetch what is not here from this portal, and keep it; repeat it to name further ones to "
    "fall back on.",
)
@click.option(
    "--upstream-cache",
    type=_CacheSize(),
    default="16 GiB",
    show_default=True,
    metavar="SIZE",
    help="Keep at most so much of what was fetched from upstream.",
)
@click.option(
    "--graceful-timeout",
    callback=storage.duration,
    default="1s",
    show_default=True,
    metavar="DURATION",
    help="Let running requests go on for so long when told to stop; a second Ctrl-C ends them.",
)
@click.option(
    "--access-log",
    type=PathType(allow_dash=True),
    metavar="FILE",
    help="Append a line for each request to FILE, in the combined format, or write it to standard "
    "error with '-'. SIGHUP opens FILE again.",
)
@click.option(
    "--metrics",
    is_flag=True,
    help="Answer /-/metrics, for Prometheus; it needs the password.",
)
@verbose_option(
    "Log to standard error also what was removed, and requests to upstream portals. Requests of "
    "clients are in --access-log."
)
@click.option("--until-eof", is_flag=True, hidden=True)
def serve(
    listen: tuple[str, int],
    password_file: Path | None,
    upstream: tuple[str, ...],
    until_eof: bool,
    workers: int,
    **settings: Any,
) -> None:
    """Serve content over HTTP until interrupted.

    The last line before it serves is "listening on http://HOST:PORT", or "listening on unix:PATH"
    and how to reach that. A socket that systemd passes takes the place of --listen.

    \b
    Examples:
      skymount portal serve --listen 127.0.0.1:0 --data ./portal-data
      skymount portal serve --listen 0.0.0.0:4280 --password-file ./password
      skymount portal serve --upstream https://portal.example
      skymount portal serve --store s3://bucket/ --database postgresql://db/portal
    """
    from skymount import systemd
    from skymount.default_portal import write_address
    from skymount.fs.mountpoint import mounts_of
    from skymount.server.http.passwords import read_password
    from skymount.server.http_server import address_of
    from skymount.server.main import run, run_workers

    environment = {} if until_eof else os.environb  # an embedded portal has no password
    host, port = listen

    def say(url: str) -> None:
        if config.cluster is None:
            write_address(config.data, url)
        click.echo(f"listening on {url}{_how_to_reach(url)}")
        if not until_eof:  # an embedded portal is no service of its own
            systemd.notify(f"READY=1\nSTATUS=listening on {url}")

    try:
        listener = None if until_eof else systemd.passed_listener(os.environ)
        if listener is not None:
            host, port = address_of(listener)
        password = read_password(password_file, environment)
        names = ("data", "store", "s3_endpoint", "database", "key_file")
        places = [settings.pop(name) for name in names]
        stored = parse_storage(*places, has_upstream=any(upstream))
        if workers > 1 and stored.cluster is None:
            raise click.UsageError("--workers needs --store: processes cannot share --data")
        config = replace(
            stored,
            host=host,
            port=port,
            password=password,
            upstream=load_settings(portals=upstream).portal_options if any(upstream) else {},
            find_mounts=partial(mounts_of, os.getuid()),
            **settings,
        )
        if workers > 1:
            raise SystemExit(run_workers(config, workers, on_listening=say, listener=listener))
        run(config, on_listening=say, until_eof=0 if until_eof else None, listener=listener)
    except SkymountError as error:  # exit code 1: a port in use is not wrong usage
        raise click.ClickException(str(error)) from None
