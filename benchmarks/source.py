"""The portal of the benchmarks: what nginx serves to the mount and its peers.

A skyfile is a payload with its metadata, in a header where it fits, and from its endpoint. The same
bytes are plain files below the root with a listing, which is what the peers mount.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from benchmarks import machine
from skymount.wire import base_sector as sector
from skymount.wire import merkle
from skymount.wire.skylink import ROOT_SIZE, SECTOR_SIZE, Skylink

_HEADER_LIMIT = 3000  # bytes of metadata in a header: nginx takes directives of up to 4 KiB
_PIECE = 16 << 20  # bytes that are written at once


@dataclass(frozen=True, slots=True)
class Skyfile:
    """Content that a portal has, as files on disk."""

    skylink: Skylink
    size: int
    payload: Path
    metadata: Path
    base_sector: Path | None = None

    def without_base_sector(self) -> Self:
        """Return it as a portal has it that hands out no base sectors, so nothing is checked."""
        return replace(self, base_sector=None)


def write_random(path: Path, size: int) -> None:
    """Write bytes that nothing can compress."""
    with path.open("wb") as file:
        for start in range(0, size, _PIECE):
            file.write(os.urandom(min(_PIECE, size - start)))


def make_file(directory: Path, name: str, size: int) -> Skyfile:
    """Make a skyfile of one file of random bytes, over 4 MiB, that nobody can check.

    Its skylink is made up, and there is no base sector.
    """
    payload, metadata = directory / name, directory / f"{name}.json"
    write_random(payload, size)
    metadata.write_text(f'{{"filename":"{name}","length":{size}}}')
    return Skyfile(make_up_skylink(), size, payload, metadata)


def make_authentic(directory: Path, name: str, size: int) -> Skyfile:
    """Make one that can be checked: its skylink is the hash of its base sector, which is there."""
    return make_checkable(make_file(directory, name, size))


def make_checkable(plain: Skyfile) -> Skyfile:
    """Give a skyfile its base sector, and the skylink that is the hash of that."""
    roots = []
    with plain.payload.open("rb") as file:
        while chunk := file.read(SECTOR_SIZE):
            roots.append(merkle.sector_root(chunk))
    base, spilled = sector.build_fanned_out(
        plain.size, b"".join(roots), plain.metadata.read_bytes()
    )
    assert not spilled
    base_sector = plain.metadata.with_suffix(".base")
    base_sector.write_bytes(base)
    skylink = Skylink.v1(merkle.sector_root(base), len(base))
    return replace(plain, skylink=skylink, base_sector=base_sector)


def make_up_skylink() -> Skylink:
    """Return a skylink that nothing hashes to."""
    return Skylink.v1(os.urandom(ROOT_SIZE), SECTOR_SIZE)


@dataclass(frozen=True, slots=True)
class Shape:
    """A tree of equal directories of equal files."""

    directories: int
    files: int
    """In each directory."""
    size: int
    """Bytes of each file."""

    @property
    def count(self) -> int:
        """Files in all."""
        return self.directories * self.files

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return self.count * self.size

    def paths(self) -> Iterator[str]:
        """Yield the path of each file, in order."""
        for directory in range(self.directories):
            for file in range(self.files):
                yield f"dir-{directory:04}/file-number-{file:04}.txt"


def make_tree(directory: Path, name: str, shape: Shape) -> Skyfile:
    """Describe a tree as a skyfile whose payload is a sparse file of zeros.

    Nobody can check it: the name is made up, and there is no base sector.
    """
    metadata, payload = directory / f"{name}.json", directory / f"{name}.payload"
    with metadata.open("w") as file:
        file.write(f'{{"filename":"{name}","length":{shape.total},"subfiles":{{')
        for number, path in enumerate(shape.paths()):
            file.write("," if number else "")
            file.write(
                f'"{path}":{{"filename":"{path}","contenttype":"text/plain",'
                f'"offset":{number * shape.size},"len":{shape.size}}}'
            )
        file.write("}}")
    payload.touch()
    os.truncate(payload, shape.total)
    return Skyfile(make_up_skylink(), shape.total, payload, metadata)


def make_local_tree(root: Path, shape: Shape) -> Path:
    """Make the same tree of files of zeros as a local directory."""
    content = bytes(shape.size)
    for path in shape.paths():
        file = root / path
        if path.endswith("-0000.txt"):
            file.parent.mkdir(parents=True)
        file.write_bytes(content)
    return root


@dataclass(frozen=True, slots=True)
class Site:
    """A running nginx."""

    port: int
    certificate: Path | None = None
    """With its key in one file; None without TLS."""

    @property
    def url(self) -> str:
        """Its address."""
        return f"http{'s' if self.certificate else ''}://127.0.0.1:{self.port}"


def url_of(portal: str, skyfile: Skyfile) -> str:
    """Return where the whole payload is."""
    return f"{portal}/{skyfile.skylink}"


def _locations(skyfile: Skyfile) -> str:
    """Return nginx's directives for a skyfile."""
    metadata = skyfile.metadata.read_text() if _has_header(skyfile) else ""
    header = f"add_header svc-metadata '{metadata}';" if metadata else ""
    text = f"""
      location = /{skyfile.skylink} {{ alias {skyfile.payload}; {header} }}
      location = /svc/metadata/{skyfile.skylink} {{ alias {skyfile.metadata}; }}"""
    if skyfile.base_sector is not None:
        text += f"""
      location = /svc/basesector/{skyfile.skylink} {{ alias {skyfile.base_sector}; }}"""
    return text


def _has_header(skyfile: Skyfile) -> bool:
    return skyfile.metadata.stat().st_size <= _HEADER_LIMIT


_CONFIG = """daemon off; {user} worker_processes 1;
pid {work}/nginx.pid; error_log {work}/nginx.log;
events {{ worker_connections 2048; }}
http {{
  access_log off; sendfile on; keepalive_requests 10000000; default_type application/octet-stream;
  client_body_temp_path {work}/nginx; proxy_temp_path {work}/nginx; fastcgi_temp_path {work}/nginx;
  uwsgi_temp_path {work}/nginx; scgi_temp_path {work}/nginx;
  server {{
    listen 127.0.0.1:{port}{tls}; root {tree}; autoindex on;{locations}
  }}
}}
"""


def _locations_of_any(skyfile: Skyfile) -> str:
    """Return nginx's directives for every skylink that is asked for: it gets this skyfile."""
    return f"""
      location ~ "^/[A-Za-z0-9_-]{{46}}" {{ alias {skyfile.payload}; }}
      location ~ "^/svc/metadata/" {{ alias {skyfile.metadata}; }}"""


@contextmanager
def serve(
    work: Path,
    skyfiles: Sequence[Skyfile],
    tree: Path,
    certificate: Path | None = None,
    *,
    any_skylink: Skyfile | None = None,
) -> Iterator[Site]:
    """Run nginx over skyfiles, and a directory for the peers, at /; with TLS, if it gets a
    certificate. Every other skylink leads to `any_skylink`.
    """
    port = machine.free_port()
    config, log = work / f"nginx-{port}.conf", work / "nginx.log"
    locations = "".join(map(_locations, skyfiles))
    if any_skylink is not None:
        locations += _locations_of_any(any_skylink)
    user = "user root;" if machine.IS_ROOT else ""  # else its worker could not read our files
    tls = f" ssl; ssl_certificate {certificate}; ssl_certificate_key {certificate}"
    tls = tls if certificate else ""
    config.write_text(
        _CONFIG.format(work=work, port=port, tree=tree, user=user, locations=locations, tls=tls)
    )
    with machine.process("nginx", "-e", log, "-p", work, "-c", config, log=log) as server:
        machine.wait_until(
            lambda: machine.listens(port) or server.poll() is not None, "nginx listens"
        )
        if server.poll() is not None:
            raise machine.BenchmarkError(f"nginx ended: {log.read_text()}")
        yield Site(port, certificate)
