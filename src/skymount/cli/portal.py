"""``skymount portal``: run the embedded portal."""

from pathlib import Path

import click


def _default_data() -> Path:
    import platformdirs

    return platformdirs.user_data_path("skymount") / "portal"


class _Address(click.ParamType[tuple[str, int]]):
    """HOST:PORT, with an IPv6 host in brackets."""

    name = "host:port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, colon, port = str(value).rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            self.fail(f"{value!r} is not HOST:PORT", param, ctx)
        return host.removeprefix("[").removesuffix("]"), int(port)


@click.group()
def portal() -> None:
    """Run a content portal on this machine.

    \b
    Example:
      skymount portal serve
    """


@portal.command()
@click.option(
    "--listen",
    type=_Address(),
    default="127.0.0.1:4280",
    show_default=True,
    help="Address to listen on; port 0 picks a free one.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=_default_data,
    show_default="the user's data directory",
    help="Directory that holds all content; created when absent.",
)
@click.option(
    "--header-limit",
    type=click.IntRange(min=0),
    default=8 << 20,
    show_default=True,
    metavar="BYTES",
    help="Leave metadata longer than this out of the response header.",
)
@click.option(
    "--max-upload",
    type=click.IntRange(min=0),
    default=5000 << 20,
    show_default=True,
    metavar="BYTES",
    help="Refuse a request body longer than this.",
)
@click.option("--until-eof", is_flag=True, hidden=True)
def serve(
    listen: tuple[str, int], data: Path, header_limit: int, max_upload: int, until_eof: bool
) -> None:
    """Serve content over HTTP until interrupted.

    The last line before it serves is "listening on http://HOST:PORT".

    \b
    Example:
      skymount portal serve --listen 127.0.0.1:0 --data ./portal-data
    """
    from skymount.errors import SkymountError
    from skymount.server import PortalConfig
    from skymount.server.process import run

    host, port = listen
    config = PortalConfig(
        data=data, host=host, port=port, header_limit=header_limit, max_upload=max_upload
    )
    try:
        run(
            config,
            on_listening=lambda url: click.echo(f"listening on {url}"),
            until_eof=until_eof,
        )
    except SkymountError as error:  # a port in use is no wrong usage: not left to the table
        raise click.ClickException(str(error)) from None
