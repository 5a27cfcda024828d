"""One reader of one big file over HTTPS, with a portal on the same machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import machine, mounts, source
from benchmarks.figures import Figure, Group, Round, rate, ratio
from benchmarks.plan import Plan, make_cold
from benchmarks.source import Site, Skyfile


def _make_certificate(work: Path) -> Path:
    """Return a new certificate of 127.0.0.1 that signs itself, with its key in the same file."""
    path, key = work / "certificate.pem", work / "key.pem"
    names = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    kind = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30")
    machine.run("openssl", "req", *kind, *names, "-keyout", str(key), "-out", str(path))
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path


@contextmanager
def prepare_tls(plan: Plan) -> Iterator[Round]:
    certificate = _make_certificate(plan.work)
    file = source.make_file(plan.work, "tls.bin", plan.sizes.tls)
    tree = plan.directory("tls-tree")
    os.link(file.payload, tree / file.payload.name)
    with source.serve(plan.work, [file], tree, certificate) as site:
        yield partial(_tls, plan, site, file)


def _tls(plan: Plan, site: Site, file: Skyfile) -> Iterator[Figure]:
    assert site.certificate is not None
    make_cold(file)
    curl = ("curl", "-sS", "--cacert", str(site.certificate), "-o", os.devnull)
    seconds = machine.timed(machine.run, *curl, source.url_of(site.url, file))
    by_curl = rate("curl", file.size, seconds)
    make_cold(file)
    with mounts.skymount(plan.work, site.url, ca_file=str(site.certificate)) as mounted:
        seconds = machine.read_cold(mounted.file(file), file.size)
        ours = rate("skymount, cold", file.size, seconds)
    make_cold(file)
    trusted = str(site.certificate)
    with mounts.skymount(plan.work, site.url, ca_file=trusted, disk_cache="off") as mounted:
        seconds = machine.read_cold(mounted.file(file), file.size)
        alone = rate("skymount, cold, without a cache on disk", file.size, seconds)
    yield from (by_curl, ours, alone)
    yield ratio("cold over HTTPS: skymount / curl", ours, by_curl, at_least=0.6)
    yield ratio("cold over HTTPS, without a cache on disk: skymount / curl", alone, by_curl)
    if machine.has("rclone"):
        make_cold(file)
        with mounts.rclone(plan.work, site.url, site.certificate) as mounted:
            seconds = machine.read_cold(mounted.place / file.payload.name, file.size)
        by_rclone = rate("rclone, cold", file.size, seconds)
        yield by_rclone
        yield ratio("cold over HTTPS: skymount / rclone", ours, by_rclone, at_least=1.5)
        yield ratio("the same without a cache on disk", alone, by_rclone)


GROUPS = [
    Group(
        "tls",
        "One reader, one file, never read before, over HTTPS",
        "A file of 512 MiB; nginx on the same machine has it in memory, and a certificate that "
        "signs itself.",
        prepare_tls,
        ("nginx", "curl", "openssl"),
    ),
]
