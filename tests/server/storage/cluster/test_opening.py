"""What keeps a portal on shared storage from starting: one line, exit code 1, within seconds."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from skymount.errors import ConfigError, StorageError
from skymount.server.storage.cluster.database import Database
from skymount.server.storage.cluster.settings import DATABASE_VARIABLE, parse_settings
from tests.portal_process import failing_start, portal_command, portal_environment
from tests.server.storage.cluster.conftest import StartPortal
from tests.server.storage.cluster.servers import CREDENTIALS, Postgres, Shared

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(180)]

DATABASE = "postgresql://user@db/portals"


def refused(shared: Shared, *changes: str, environment: dict[str, str] | None = None) -> str:
    """Start a portal with other arguments, which cannot start; return what it says."""
    arguments = ["--listen", "127.0.0.1:0", *shared.arguments, *changes]
    return failing_start(*arguments, environment=environment or CREDENTIALS)


def test_store_that_cannot_be_used(shared: Shared) -> None:
    """SP7: not there, without the bucket, or with other credentials."""
    assert "cannot be reached" in refused(shared, "--s3-endpoint", "http://127.0.0.1:9")
    assert "NoSuchBucket" in refused(shared, "--store", "s3://missing")
    wrong = {**CREDENTIALS, "AWS_ACCESS_KEY_ID": "WRONG"}
    said = refused(shared, environment=wrong)
    assert "InvalidAccessKeyId" in said
    assert "S3RVER" not in said


def test_database_that_cannot_be_used(shared: Shared, tmp_path: Path) -> None:
    """SP7: not there, missing, or of a version that is too new."""
    absent = f"postgresql://skymount@/portals?host={tmp_path}"
    assert "cannot use the database: connection" in refused(shared, "--database", absent)
    missing = shared.postgres.url("missing")
    assert 'database "missing" does not exist' in refused(shared, "--database", missing)
    newer = "CREATE TABLE skymount_schema AS SELECT 99 AS version, 98 AS oldest"
    shared.postgres.execute(shared.database, newer)
    assert "its tables are of version 99, which a newer skymount made" in refused(shared)


def test_newer_tables_that_fit(shared: Shared, start: StartPortal) -> None:
    """SP7: two versions run side by side as long as the newer one only added something."""
    with start(shared):
        pass
    changed = "UPDATE skymount_schema SET version = 99"
    shared.postgres.execute(shared.database, changed)
    with start(shared):
        pass


def test_another_key_for_skykeys(shared: Shared, start: StartPortal, tmp_path: Path) -> None:
    """SP4: it is found out at the start, not when somebody needs a skykey."""
    with start(shared):
        pass
    other = tmp_path / "other"
    other.write_text("7c" * 32)
    other.chmod(0o600)
    assert "the key file is another one's" in refused(shared, "--key-file", str(other))
    other.chmod(0o644)
    assert "cannot be used" in refused(shared, "--key-file", str(other))


@pytest.mark.parametrize(
    "database",
    [
        "postgresql://user:secret@db/portals",
        "postgresql://user@db/portals?password=secret",
        "postgresql://user@db/portals?sslmode=require&PASSWORD=secret",
        "postgresql://:secret@[",
    ],
)
def test_password_among_arguments(database: str) -> None:
    """SP8: it is refused, and not repeated."""
    with pytest.raises(ConfigError, match="has a password") as caught:
        parse_settings("s3://bucket", "", database, None, {})
    assert "secret" not in str(caught.value)


def test_password_in_the_environment() -> None:
    """SP8: there it may be; it is in no representation."""
    whole = "postgresql://user:secret@db/portals"
    found = parse_settings("s3://bucket/a/b/", "", "", None, {DATABASE_VARIABLE: whole})
    assert found.database == whole
    assert (found.bucket, found.prefix) == ("bucket", "a/b")
    assert "secret" not in repr(found)


@pytest.mark.parametrize("host", ["[::1]x/portals", "db/portals?what=1", "db/portals?options=%zz"])
def test_malformed_url_with_a_password(host: str) -> None:
    """SP8: the message of the library, which has the URL, is not passed on."""
    with pytest.raises(StorageError, match="malformed") as caught:
        Database.open(f"postgresql://user:secret@{host}")
    assert "secret" not in str(caught.value)


def test_options_of_the_url(postgres: Postgres) -> None:
    url = postgres.url(postgres.new_database()) + "&options=-c%20lock_timeout%3D1234"
    with closing(Database.open(url)) as database:
        for name, value in (("lock_timeout", "1234ms"), ("statement_timeout", "1min")):
            query = "SELECT current_setting(%s)"
            assert database.rows("look", query, (name,)) == [(value,)]


@pytest.mark.parametrize(
    ("store", "endpoint", "database", "reason"),
    [
        ("bucket", "", DATABASE, "is not s3://BUCKET"),
        ("s3://", "", DATABASE, "is not s3://BUCKET"),
        ("s3://bucket/a/../b", "", DATABASE, "is not s3://BUCKET"),
        ("s3://bucket/a b", "", DATABASE, "is not s3://BUCKET"),
        ("s3://Bucket", "", DATABASE, "is not s3://BUCKET"),
        ("s3://bucket", "host:9000", DATABASE, "--s3-endpoint is not"),
        ("s3://bucket", "http://key:secret@host", DATABASE, "--s3-endpoint is not"),
        ("s3://bucket", "http://host:99999", DATABASE, "--s3-endpoint is not"),
        ("s3://bucket", "http://host/path", DATABASE, "--s3-endpoint is not"),
        ("s3://bucket", "", "", "no database is named"),
        ("s3://bucket", "", "mysql://db/portals", "is not named by a URL"),
        ("s3://bucket", "", "postgresql://[", "is not named by a URL"),
    ],
)
def test_arguments_that_are_wrong(store: str, endpoint: str, database: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_settings(store, endpoint, database, None, {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments", [["--workers", "2"], ["--database", DATABASE], ["--s3-endpoint", "http://host"]]
)
def test_without_a_store(arguments: list[str], tmp_path: Path) -> None:
    """SP6: several processes never share a data directory."""
    done = subprocess.run(
        portal_command("serve", "--data", str(tmp_path), *arguments),
        capture_output=True,
        text=True,
        env=portal_environment(),
        check=False,
    )
    assert done.returncode == 2
    assert "--store" in done.stderr


def test_a_portal_on_a_disk_imports_no_engine(tmp_path: Path) -> None:
    code = """
import sys, trio
from pathlib import Path
from skymount.server.config import PortalConfig
from skymount.server.storage.cluster.choice import open_storage
import skymount.server.main
async def main():
    async with open_storage(PortalConfig(Path(sys.argv[1]))):
        assert not {"obstore", "psycopg", "psycopg_pool", "boto3"} & sys.modules.keys()
trio.run(main)
"""
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=portal_environment(), check=True
    )
