"""``skymount skylink``: what a skylink says by itself."""

import click

from skymount.cli.options import load_settings, setting_options
from skymount.cli.output import emit, json_option
from skymount.wire.dialect import Dialect
from skymount.wire.skylink import Skylink, split_link


@click.group()
def skylink() -> None:
    """Inspect skylinks, without a portal.

    \b
    Examples:
      skymount skylink parse LINK
      skymount skylink inspect LINK
    """


@skylink.command()
@click.argument("link")
@click.option("--base32", "as_base32", is_flag=True, help="Print the 55-character form.")
@json_option
def parse(link: str, as_base32: bool, as_json: bool) -> None:
    """Print the 46-character form of LINK, and its path if it has one.

    LINK is a skylink in either form, with or without a scheme, or a portal's URL.

    \b
    Examples:
      skymount skylink parse https://portal.example/SKYLINK/a/file
      skymount skylink parse --base32 SKYLINK
    """
    found, path = split_link(link)
    value = {"skylink": str(found), "base32": found.base32, "path": path}
    emit(value, as_json, [(found.base32 if as_base32 else str(found)) + path])


@skylink.command(short_help="Print what a skylink says by itself.")
@click.argument("link")
@setting_options("dialect")
@json_option
def inspect(link: str, dialect: str | None, config_file: str | None, as_json: bool) -> None:
    """Print the version, offset, size and Merkle root or entry of the skylink in LINK.

    \b
    Example:
      skymount skylink inspect SKYLINK
    """
    found, path = split_link(link)
    settings = load_settings(dialect=dialect, config_file=config_file)
    value = _facts(found, path, settings.first_dialect)
    width = max(map(len, value)) + 2
    emit(value, as_json, [f"{name + ':':<{width}}{fact}" for name, fact in value.items()])


def _facts(found: "Skylink", path: str, dialect: "Dialect") -> dict[str, str | int]:
    facts: dict[str, str | int] = {
        "skylink": str(found),
        "base32": found.base32,
        "link": dialect.link(found) + path,
        "version": found.version,
        "bitfield": found.bitfield,
    }
    if found.version == 1:
        facts |= {
            "offset": found.offset,
            "fetch_size": found.fetch_size,
            "merkleroot": found.root.hex(),
        }
    else:
        facts["entry_id"] = found.root.hex()
    return facts | ({"path": path} if path else {})
