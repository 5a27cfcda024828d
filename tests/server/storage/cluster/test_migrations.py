"""Portals of two versions at one database."""

import hashlib
import threading
from contextlib import closing

import psycopg
import pytest

from skymount.errors import StorageError
from skymount.server.storage.cluster import migrations, skyfile_rows
from skymount.server.storage.cluster.database import Database
from skymount.server.storage.retention.shared_pins import SharedPins
from skymount.wire.skylink import Skylink
from tests.server.storage.cluster.servers import Postgres

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(180)]

RELEASED = 2  # steps of the last release
# What a portal of that release runs when it stores and removes skyfiles.
FORMER_PUT = """
INSERT INTO skyfiles (skylink, root, name, folded, size, kept, files, is_encrypted, stored)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (skylink) DO UPDATE SET stored = excluded.stored
RETURNING xmax = 0
"""
FORMER_REMOVE = "DELETE FROM skyfiles WHERE skylink = ANY(%s) AND stored < %s"


def link(number: int) -> Skylink:
    return Skylink.v1(bytes([number]) * 32, 99)


def row(number: int, kept: int) -> tuple[object, ...]:
    return str(link(number)), b"r" * 32, "a", "a", kept, kept, 0, False, float(number)


@pytest.fixture
def url(postgres: Postgres) -> str:
    """A database as the release made it, with one skyfile."""
    url = postgres.url(postgres.new_database())
    with psycopg.connect(url, autocommit=True) as former:
        former.execute("CREATE TABLE skymount_schema (version integer, oldest integer)")
        for step in migrations.STEPS[:RELEASED]:
            former.execute(step)
        former.execute("INSERT INTO skymount_schema VALUES (%s, 1)", (RELEASED,))
        former.execute(FORMER_PUT, row(1, 1000))
    return url


def test_released_steps_stay_as_they_are() -> None:
    """Otherwise tables of one version would differ."""
    text = "\0".join(migrations.STEPS[:RELEASED])
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "ec50414ad101aea5292d80b3062f55b72151c1359c9bf6dc9c59e907532a2f8a"
    )
    assert migrations.OLDEST == 1


def test_both_versions_are_counted(url: str) -> None:
    """RT8: what a portal of the version before stores and removes, too."""
    with (
        psycopg.connect(url, autocommit=True) as former,
        closing(Database.open(url)) as database,
    ):
        assert skyfile_rows.totals(database) == (1, 1000)
        assert former.execute(FORMER_PUT, row(2, 500)).fetchone() == (True,)
        assert former.execute(FORMER_PUT, row(2, 500)).fetchone() == (False,)
        assert skyfile_rows.totals(database) == (2, 1500)
        former.execute(FORMER_REMOVE, ([str(link(1)), str(link(3))], 9.0))
        assert skyfile_rows.totals(database) == (1, 500)
        assert SharedPins(database).pin(link(2))
        assert not SharedPins(database).pin(link(1))
        former.execute(FORMER_REMOVE, ([], 9.0))
        assert skyfile_rows.totals(database) == (1, 500)


def test_the_version_before_stores_nothing_that_is_being_removed(url: str) -> None:
    """RT7: it does not know of it, so the database refuses."""
    with (
        psycopg.connect(url, autocommit=True) as former,
        closing(Database.open(url)) as database,
    ):
        database.write(
            "begin a removal",
            lambda connection: connection.execute(
                "INSERT INTO removals VALUES (%s, now() + interval '1 minute')", (str(link(1)),)
            ),
        )
        with pytest.raises(psycopg.errors.RaiseException, match="being removed"):
            former.execute(FORMER_PUT, row(1, 1000))
        former.execute(FORMER_PUT, row(2, 1000))


def test_a_transaction_of_the_version_before_is_counted(url: str) -> None:
    """RT8: one that runs while the tables are brought up to date."""
    opened: list[Database] = []
    failures: list[StorageError] = []

    def open_new() -> None:
        try:
            opened.append(Database.open(url))
        except StorageError as error:
            failures.append(error)

    with psycopg.connect(url, autocommit=True) as former:
        with former.transaction():
            former.execute(FORMER_PUT, row(2, 500))
            opening = threading.Thread(target=open_new)
            opening.start()
            opening.join(0.3)
            assert opening.is_alive(), "it waits"
        opening.join(60)
    assert not failures
    with closing(opened[0]) as database:
        assert skyfile_rows.totals(database) == (2, 1500)
