"""What keeps a portal on shared storage from starting: one line, exit code 1, within seconds."""

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
import trustme

from skymount.errors import ConfigError, StorageError
from skymount.server.config import ClusterSettings
from skymount.server.storage.cluster.database import Database
from skymount.server.storage.cluster.migrations import Tables
from skymount.server.storage.cluster.objects import Objects
from skymount.server.storage.cluster.settings import (
    DATABASE_VARIABLE,
    parse_database,
    parse_settings,
)
from tests.portal_process import (
    failing_start,
    portal_command,
    portal_environment,
    portal_process,
)
from tests.server.http_client import Client, message_of
from tests.server.raw_connection import eventually
from tests.server.storage.cluster.conftest import StartPortal
from tests.server.storage.cluster.servers import (
    CREDENTIALS,
    WITH_PASSWORD,
    Postgres,
    Shared,
    verified_signatures,
)

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(180)]

DATABASE = "postgresql://user@db/portals"


def refused(shared: Shared, *changes: str, environment: dict[str, str] | None = None) -> str:
    """Start a portal with other arguments, which cannot start; return what it says."""
    arguments = ["--listen", "127.0.0.1:0", *shared.arguments, *changes]
    return failing_start(*arguments, environment=environment or CREDENTIALS)


def test_bucket_that_is_missing(shared_on_each: Shared) -> None:
    """SP7: on both stores."""
    assert "NoSuchBucket" in refused(shared_on_each, "--store", "s3://missing")


def test_store_that_cannot_be_used(shared: Shared) -> None:
    """SP7: not there, or with other credentials."""
    assert "cannot be reached" in refused(shared, "--s3-endpoint", "http://127.0.0.1:9")
    wrong = {**CREDENTIALS, "AWS_ACCESS_KEY_ID": "WRONG"}
    said = refused(shared, environment=wrong)
    assert "InvalidAccessKeyId" in said
    assert "S3RVER" not in said


def test_secrets_that_are_wrong(
    moto: str, postgres: Postgres, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """SP7 at the start, SP5 later: until the file of the credentials has the right one again."""
    shared = Shared.new(moto, postgres, tmp_path)
    file = tmp_path / "credentials"
    environment = {"AWS_SHARED_CREDENTIALS_FILE": str(file)}

    def write(secret: str) -> None:
        lines = ["[default]", f"aws_access_key_id = {key}", f"aws_secret_access_key = {secret}"]
        file.write_text("\n".join(lines))

    with verified_signatures(moto) as (key, secret):
        write("wrong")
        said = refused(shared, environment=environment)
        assert "the store answers SignatureDoesNotMatch" in said
        assert key not in said
        write(secret)
        serving = portal_process(tmp_path / "unused", *shared.arguments, environment=environment)
        with serving as portal, Client(base_url=portal.url, timeout=60) as client:
            link = client.upload_file("x", b"before")
            assert client.get(f"/{link}").content == b"before"
            write("wrong")
            eventually(lambda: upload(client).status_code == 503)
            assert "SignatureDoesNotMatch" in message_of(upload(client))
            assert client.get(f"/AA{0:044}").status_code == 503
            assert client.get(f"/{link}").content == b"before"
            write(secret)
            eventually(lambda: upload(client).status_code == 200)
    assert "POST '/svc/skyfile': cannot write to the object store" in capfd.readouterr().err


def upload(client: Client) -> httpx.Response:
    return client.post("/svc/skyfile?filename=x", content=b"x", headers={"Content-Type": "a/b"})


def test_database_that_cannot_be_used(shared: Shared, tmp_path: Path) -> None:
    """SP7: not there, missing, or of a version that is too new."""
    absent = f"postgresql://skymount@/portals?host={tmp_path}"
    assert "cannot use the database: connection" in refused(shared, "--database", absent)
    missing = shared.postgres.url("missing")
    assert 'database "missing" does not exist' in refused(shared, "--database", missing)
    newer = "CREATE TABLE skymount_schema AS SELECT 99 AS version, 98 AS oldest"
    shared.postgres.execute(shared.database, newer)
    assert "its tables are of version 99, which a newer skymount made" in refused(shared)


def user_at(shared: Shared, user: str) -> str:
    return shared.postgres.url(shared.database).replace("skymount@", f"{user}@", 1)


def test_users_that_the_database_refuses(shared: Shared) -> None:
    """SP7: with a wrong password or none, unknown, or without the right to make tables."""
    execute = partial(shared.postgres.execute, shared.database)
    execute(f"DROP ROLE IF EXISTS {WITH_PASSWORD}, powerless")
    execute(f"CREATE ROLE {WITH_PASSWORD} LOGIN PASSWORD 'right'; CREATE ROLE powerless LOGIN")
    said = refused(
        shared,
        *("--database", user_at(shared, WITH_PASSWORD)),
        environment={**CREDENTIALS, "PGPASSWORD": "wrong"},
    )
    assert "password authentication failed" in said
    assert "wrong" not in said
    for user, reason in (
        (WITH_PASSWORD, "no password supplied"),
        ("nobody-knows", 'role "nobody-knows" does not exist'),
        ("powerless", "permission denied for schema public"),
    ):
        with pytest.raises(StorageError, match=reason):
            Database.open(user_at(shared, user), Tables.UPDATE)


class _Silent:
    """Accepts connections, as the kernel does that, and says nothing."""

    def __enter__(self) -> str:
        self._socket = socket.create_server(("127.0.0.1", 0))
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def test_servers_that_do_not_answer(shared: Shared) -> None:
    """SP7: an object store, a database, and one that answers as far as to the first statement."""
    table = "CREATE TABLE skymount_schema (version integer, oldest integer)"
    shared.postgres.execute(shared.database, table)
    lock = "LOCK TABLE skymount_schema; SELECT pg_sleep(60)"
    psql = [shared.postgres.programs / "psql", "-h", shared.postgres.directory, "-U", "skymount"]
    with (
        _Silent() as silent,
        subprocess.Popen([*psql, "-d", shared.database, "-c", lock], cwd="/") as holding,
        ThreadPoolExecutor(3) as threads,
    ):
        try:
            locks = (
                "SELECT count(*) FROM pg_locks WHERE granted AND mode = 'AccessExclusiveLock'"
                " AND relation = 'skymount_schema'::regclass"
            )
            eventually(lambda: shared.postgres.execute(shared.database, locks) == "1\n")
            store = threads.submit(refused, shared, "--s3-endpoint", f"http://{silent}")
            url = f"postgresql://skymount@{silent}/portals"
            database = threads.submit(refused, shared, "--database", url)
            held = threads.submit(refused, shared)
            assert "no answer in 10 s" in store.result()
            assert "cannot use the database: connection" in database.result()
            assert "cannot use the database: no answer in 10 s" in held.result()
        finally:
            holding.kill()


@contextmanager
def _unknown_authority(serve: Callable[[ssl.SSLSocket], None], first: bytes = b"") -> Iterator[str]:
    """Run a server with TLS and a certificate of nobody known; `first` is sent before TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    def run() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    if first:
                        connection.recv(8)
                        connection.sendall(first)
                    with context.wrap_socket(connection, server_side=True) as secured:
                        serve(secured)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_certificates_that_are_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """SP7: the message says that it is the certificate."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with _unknown_authority(lambda connection: None) as address:
        settings = ClusterSettings("bucket", "", "", f"https://{address}")
        with pytest.raises(StorageError, match="its certificate is not accepted"):
            Objects(settings).check()
    with _unknown_authority(lambda connection: None, b"S") as address:
        url = f"postgresql://user@{address}/portals?sslmode=verify-full&sslrootcert=system"
        with pytest.raises(StorageError, match="certificate verify failed"):
            Database.open(url, Tables.UPDATE)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file"),
        ("", "does not have 64 hex digits"),
        ("5a" * 31, "does not have 64 hex digits"),
        ("5a" * 32 + "x", "does not have 64 hex digits"),
    ],
)
def test_key_files_that_have_no_key(content: str | None, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
        file.chmod(0o600)
    with pytest.raises(ConfigError, match=reason):
        parse_settings("s3://bucket", "", DATABASE, file, {})


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


@pytest.mark.parametrize("password", ["s@secret", "s/secret", "s@s/secret", "secret/s@s"])
def test_password_that_is_not_encoded(password: str) -> None:
    """SP8: else libpq takes a part of it for a host, and says so."""
    url = f"postgresql://user:{password}@db/portals"
    with pytest.raises(ConfigError, match="@ as %40") as caught:
        parse_database("", {"SKYMOUNT_PORTAL_DATABASE": url})
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        parse_database(url, {})
    assert "secret" not in str(caught.value)
    good = "postgresql://user:s%40%2Fs@one,two:5433/portals?application_name=a@b"
    assert parse_database("", {"SKYMOUNT_PORTAL_DATABASE": good}) == good


@pytest.mark.parametrize(
    "database",
    [
        "postgresql://user:secret@db/portals",
        "postgresql://user@db/portals?password=secret",
        "postgresql://user@db/portals?sslmode=require&PASSWORD=secret",
        "postgresql://:secret@[",
        "postgresql://user:s#secret@db/portals",
        "postgresql://user:s?secret=1@db/portals",
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
        Database.open(f"postgresql://user:secret@{host}", Tables.UPDATE)
    assert "secret" not in str(caught.value)


def test_options_of_the_url(postgres: Postgres) -> None:
    url = postgres.url(postgres.new_database()) + "&options=-c%20lock_timeout%3D1234"
    with closing(Database.open(url, Tables.UPDATE)) as database:
        for name, value in (("lock_timeout", "1234ms"), ("statement_timeout", "20s")):
            query = "SELECT current_setting(%s)"
            assert database.rows("look", query, (name,)) == [(value,)]


@pytest.mark.parametrize(
    ("store", "endpoint", "database", "reason"),
    [
        ("bucket", "", DATABASE, "is not s3://BUCKET"),
        ("s3://", "", DATABASE, "is not s3://BUCKET"),
        ("s3://bucket/a/../b", "", DATABASE, "is not s3://BUCKET"),
        ("s3://bucket/a b", "", DATABASE, "is not s3://BUCKET"),
        ("s3:///prefix", "", DATABASE, "is not s3://BUCKET"),
        ("s3://b/prefix", "", DATABASE, "'b' is not a name of a bucket: it has 3 to 63"),
        (f"s3://{'b' * 64}", "", DATABASE, "it has 3 to 63 characters"),
        ("s3://Bucket", "", DATABASE, "a-z, 0-9"),
        ("s3://bucket-", "", DATABASE, "first and last one a letter or digit"),
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
from skymount.server.storage.cluster.migrations import Tables
import skymount.server.main
async def main():
    async with open_storage(PortalConfig(Path(sys.argv[1])), Tables.UPDATE):
        assert not {"obstore", "psycopg", "psycopg_pool", "boto3"} & sys.modules.keys()
trio.run(main)
"""
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=portal_environment(), check=True
    )
