"""Checks of what is kept on disk: the cache, the ledger and the log."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from skymount import file_permissions
from skymount.cli.doctor.finding import Finding, failure, ok, warning
from skymount.content.cache import block_store
from skymount.content.cache.block_store import BlockStore
from skymount.errors import CacheError, StorageError
from skymount.portal.ledger import ledger
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.outbox import owed_summary, summary
from skymount.settings import Config
from skymount.storage.write_check import free_space, write_problem
from skymount.wording import readable_size

_LEAST_FREE = 64 << 20  # bytes of a disk that counts as nearly full


def check_cache(config: Config, path: Path) -> Finding:
    """The directory of the cache on disk (docs/semantics.md, K1 to K6)."""
    subject = "disk cache"
    if not config.disk_cache:
        return ok(subject, "off")
    if problem := write_problem(path):
        return failure(subject, problem, "nothing is cached there until that is mended")
    try:
        store = BlockStore.existing(path, 0)
        used = store.info().bytes if store else 0
    except CacheError as error:
        return failure(subject, str(error), "nothing is cached there until that is mended")
    free = free_space(path)
    size = readable_size(config.disk_cache)
    text = f"{path} holds {readable_size(used)} of {size}, {readable_size(free)} are free"
    if used + free < config.disk_cache:
        advice = "make room, or set a smaller disk_cache"
        return warning(subject, f"{text}: fewer than it may take", advice)
    return ok(subject, text)


def check_state(path: Path) -> Finding:
    """The directory of the ledger and the logs."""
    subject = "state"
    if problem := write_problem(path):
        return failure(subject, problem, "writes to registry and skydb need it, and so do logs")
    free = free_space(path)
    if free < _LEAST_FREE:
        return warning(subject, f"{path}: only {readable_size(free)} are free", "make room")
    return ok(subject, str(path))


def check_ledger(path: Path) -> Finding:
    """What is known of registry entries, and what could not be posted."""
    subject = "ledger"
    if not path.exists():
        return ok(subject, f"there is no {path} yet")
    if problem := file_permissions.permission_problem(path, path.stat()):
        return failure(subject, f"{path}: {problem}")
    with contextlib.closing(Ledger(path)) as opened:
        try:
            opened.prepare()
            texts = summary(opened.count_unsent()), owed_summary(opened.totals())
        except StorageError as error:
            return failure(subject, str(error))
    text = "; ".join(filter(None, texts))
    return warning(subject, text) if text else ok(subject, f"{path}, nothing is pending")


def checks(config: Config) -> Iterator[Finding]:
    """Check all of them."""
    try:
        yield check_cache(config, block_store.default_path())
        path = ledger.default_path()
    except (CacheError, StorageError) as error:
        yield failure("state", str(error), "writes to registry and skydb need it, and so do logs")
        return
    yield check_state(path.parent)
    yield check_ledger(path)
