"""Portals of two versions at one database."""

import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from skymount.errors import StorageError
from skymount.server.storage.cluster import migrations, skyfile_rows
from skymount.server.storage.cluster.database import Database
from skymount.server.storage.cluster.migrations import Tables
from skymount.server.storage.retention.shared_pins import SharedPins
from skymount.wire.skylink import Skylink
from tests.portal_process import portal_process
from tests.server.raw_connection import eventually
from tests.server.storage.cluster.conftest import StartPortal
from tests.server.storage.cluster.servers import CREDENTIALS, Postgres, Shared
from tests.skymount_process import Sandbox

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


def make_released(url: str) -> str:
    """Make tables as the release did, with one skyfile."""
    with psycopg.connect(url, autocommit=True) as former:
        former.execute("CREATE TABLE skymount_schema (version integer, oldest integer)")
        for step in migrations.STEPS[:RELEASED]:
            former.execute(step)
        former.execute("INSERT INTO skymount_schema VALUES (%s, 1)", (RELEASED,))
        former.execute(FORMER_PUT, row(1, 1000))
    return url


@pytest.fixture
def url(postgres: Postgres) -> str:
    return make_released(postgres.url(postgres.new_database()))


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
        closing(Database.open(url, Tables.UPDATE)) as database,
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
        closing(Database.open(url, Tables.UPDATE)) as database,
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
            opened.append(Database.open(url, Tables.UPDATE))
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


def test_portals_that_start_meanwhile_wait(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """SP7: for the one that changes the tables, as long as that takes; the log says so."""
    told = "another portal changes the tables of the database"
    with ThreadPoolExecutor(4) as threads:
        with psycopg.connect(url) as migrating:
            migrating.execute("SELECT pg_advisory_xact_lock(x'736b0003'::bigint)")
            opening = [threads.submit(Database.open, url, Tables.UPDATE) for _ in range(4)]
            eventually(lambda: sum(told in message for message in caplog.messages) == 4)
            assert not any(each.done() for each in opening)
            assert versions(url) == [(RELEASED, 1)]
        for each in opening:
            with closing(each.result(60)) as database:
                assert skyfile_rows.totals(database) == (1, 1000)
    assert versions(url) == [(migrations.VERSION, migrations.OLDEST)]


def versions(url: str) -> list[tuple[int, int]]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT version, oldest FROM skymount_schema").fetchall()


def test_commands_leave_older_tables_as_they_are(
    shared: Shared, start: StartPortal, sandbox: Sandbox, tmp_path: Path
) -> None:
    """SP7: they name what brings them up to date. Those about names work: names are the same."""
    box, archive = sandbox.with_env(**CREDENTIALS), tmp_path / "archive"
    with portal_process(tmp_path / "data"):
        pass
    box.succeed("portal", "export", archive, "--data", tmp_path / "data")
    url = make_released(shared.postgres.url(shared.database))
    skylink = str(link(1))
    for command in ("list", f"pin {skylink}", f"import {archive}"):
        said = box.fail("portal", *command.split(), *shared.arguments)
        assert f"its tables are of version {RELEASED}, and this command needs" in said, command
        assert "start a portal of this skymount, which brings them up to date" in said
    box.succeed("portal", "hns", "set", "example", skylink, "--database", url)
    assert "example" in box.succeed("portal", "hns", "list", "--database", url)
    box.succeed("portal", "hns", "remove", "example", "--database", url)
    assert versions(url) == [(RELEASED, 1)]
    with start(shared):
        assert skylink in box.succeed("portal", "list", *shared.arguments)
    assert versions(url) == [(migrations.VERSION, migrations.OLDEST)]


def test_commands_on_an_empty_database(shared: Shared, sandbox: Sandbox, tmp_path: Path) -> None:
    """SP7: what only reads, or changes what is there, makes no tables; `hns set` does."""
    box = sandbox.with_env(**CREDENTIALS)
    url = shared.postgres.url(shared.database)
    for command in ("list", f"pin {link(1)}"):
        said = box.fail("portal", *command.split(), *shared.arguments)
        assert "it has no tables of a portal" in said, command
    assert "it has no tables" in box.fail("portal", "hns", "list", "--database", url)
    assert shared.postgres.execute(shared.database, "SELECT to_regclass('skymount_schema')") == "\n"
    box.succeed("portal", "hns", "set", "example", str(link(1)), "--database", url)
    assert versions(url) == [(migrations.VERSION, migrations.OLDEST)]


def test_a_user_who_may_only_read(shared: Shared, sandbox: Sandbox) -> None:
    """SP7: tables that are up to date are read without the right to make any."""
    box = sandbox.with_env(**CREDENTIALS)
    url = shared.postgres.url(shared.database)
    Database.open(url, Tables.UPDATE).close()
    rights = "DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN"
    shared.postgres.execute(shared.database, rights)
    shared.postgres.execute(
        shared.database, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"
    )
    given = [*shared.arguments[:4], "--database", url.replace("skymount@", "reader@", 1)]
    assert json.loads(box.succeed("portal", "list", "--json", *given)) == []
    shared.postgres.execute(shared.database, "DROP OWNED BY reader; DROP ROLE reader")
