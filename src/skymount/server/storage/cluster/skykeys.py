"""The skykeys of portals that share a database, encrypted there with a key from a file."""

import secrets
from typing import Any

import trio
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from skymount.errors import MalformedError, StorageError
from skymount.server.storage.cluster.database import Connection, Database
from skymount.server.storage.skykey_store import check_new_skykey, pick_skykey
from skymount.wire.skykey import KEY_SIZE, NONCE_SIZE, Kind, Skykey

_CHECK = b"skymount skykeys"
_NO_KEY = "there are no skykeys without --key-file"


class SharedSkykeys:
    """The skykeys. They are read again when another process has changed them."""

    def __init__(self, database: Database, key: bytes) -> None:
        self._database = database
        self._box = SecretBox(key) if key else None
        self._version = -1
        self._keys: tuple[Skykey, ...] = ()

    def check(self) -> None:
        """StorageError when the key is not the one that is used here. Blocks."""
        box = self._box
        if box is None:
            return

        def compare(connection: Connection) -> None:
            with connection.transaction():
                query = "SELECT sealed_check FROM skykeys_state FOR UPDATE"
                row = connection.execute(query).fetchone()
                if row is not None and row[0] is not None:
                    self._open(row[0])
                    return
                sealed = bytes(box.encrypt(_CHECK))
                connection.execute("UPDATE skykeys_state SET sealed_check = %s", (sealed,))

        self._database.write("use skykeys", compare)

    def _open(self, sealed: bytes) -> bytes:
        assert self._box is not None
        try:
            return self._box.decrypt(sealed)
        except (CryptoError, ValueError):
            raise StorageError("cannot read skykeys: the key file is another one's") from None

    async def all(self) -> tuple[Skykey, ...]:
        if self._box is None:
            await trio.lowlevel.checkpoint()
            return ()
        return await self._database.run(self.read)

    def read(self) -> tuple[Skykey, ...]:
        """Return what `all` does; MalformedError without a key. Blocks."""
        if self._box is None:
            raise MalformedError(_NO_KEY)
        known = self._version

        def read(connection: Connection) -> tuple[int, list[Any] | None]:
            row = connection.execute("SELECT version FROM skykeys_state").fetchone()
            version = row[0] if row else 0
            if version == known:
                return version, None
            query = "SELECT sealed FROM skykeys ORDER BY number"  # of this version or a later one
            return version, connection.execute(query).fetchall()

        version, rows = self._database.read("read skykeys", read)
        if rows is not None:
            keys = tuple(_parse(self._open(sealed)) for (sealed,) in rows)
            if version > self._version:  # not one that was read earlier by another thread
                self._keys, self._version = keys, version
            return keys
        return self._keys

    async def find(self, *, name: str = "", key_id: str = "") -> Skykey:
        return pick_skykey(await self.all(), name=name, key_id=key_id)

    async def create(self, name: str, kind: Kind) -> Skykey:
        key = Skykey(kind, secrets.token_bytes(KEY_SIZE), secrets.token_bytes(NONCE_SIZE), name)
        await self.add(key)
        return key

    async def add(self, skykey: Skykey) -> None:
        box = self._box
        if box is None:
            raise MalformedError(_NO_KEY)

        def add(connection: Connection, keys: list[Skykey]) -> None:
            check_new_skykey(keys, skykey)
            connection.execute(
                "INSERT INTO skykeys (id, sealed) VALUES (%s, %s)",
                (skykey.id, bytes(box.encrypt(skykey.text.encode()))),
            )

        await self._database.run(self._change, add)

    async def delete(self, *, name: str = "", key_id: str = "") -> None:
        if self._box is None:
            pick_skykey((), name=name, key_id=key_id)

        def delete(connection: Connection, keys: list[Skykey]) -> None:
            found = pick_skykey(keys, name=name, key_id=key_id)
            connection.execute("DELETE FROM skykeys WHERE id = %s", (found.id,))

        await self._database.run(self._change, delete)

    def _change(self, change: Any) -> None:
        """Change the keys in one transaction, one process after the other."""

        def work(connection: Connection) -> None:
            with connection.transaction():
                connection.execute("UPDATE skykeys_state SET version = version + 1")
                rows = connection.execute("SELECT sealed FROM skykeys ORDER BY number").fetchall()
                change(connection, [_parse(self._open(sealed)) for (sealed,) in rows])

        self._database.write("write skykeys", work)


def _parse(text: bytes) -> Skykey:
    try:
        return Skykey.parse(text.decode())
    except (MalformedError, UnicodeDecodeError):
        raise StorageError("cannot read skykeys: one is damaged") from None
