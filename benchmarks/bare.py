"""A bare file system: a tree of zeros from memory, the least that pyfuse3 can do.

    python -m benchmarks.bare MOUNTPOINT DIRECTORIES FILES SIZE

What a mount loses against it is its own; what it loses against a local directory is the kernel's.
"""

import errno
import stat
import sys

import pyfuse3
import trio

from benchmarks.source import Shape

_FOREVER = 1e6  # seconds that the kernel may keep names, attributes and pages
_LARGEST = 1 << 20  # bytes of one read
_ZEROS = bytes(_LARGEST)


class Bare(pyfuse3.Operations):
    """Directories of files of zeros. A handle is the inode number."""

    enable_writeback_cache = False

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._size = shape.size
        self._attributes: dict[int, pyfuse3.EntryAttributes] = {}
        self._listings: dict[int, list[tuple[bytes, pyfuse3.EntryAttributes]]] = {}
        root = self._add(stat.S_IFDIR | 0o755)
        assert root.st_ino == pyfuse3.ROOT_INODE
        directories: dict[str, pyfuse3.EntryAttributes] = {}
        for path in shape.paths():
            above, name = path.split("/")
            if above not in directories:
                directories[above] = self._put(root, above.encode(), stat.S_IFDIR | 0o755)
            self._put(directories[above], name.encode(), stat.S_IFREG | 0o444)

    def _put(
        self, parent: pyfuse3.EntryAttributes, name: bytes, mode: int
    ) -> pyfuse3.EntryAttributes:
        made = self._add(mode)
        self._listings[parent.st_ino].append((name, made))
        return made

    def _add(self, mode: int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = len(self._attributes) + pyfuse3.ROOT_INODE
        entry.st_nlink = 1
        entry.entry_timeout = entry.attr_timeout = _FOREVER
        entry.st_mode = mode
        if stat.S_ISDIR(mode):
            self._listings[entry.st_ino] = []
        else:
            entry.st_size = self._size
        self._attributes[entry.st_ino] = entry
        return entry

    async def getattr(self, inode: int, ctx: object = None) -> pyfuse3.EntryAttributes:
        return self._attributes[inode]

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: object = None
    ) -> pyfuse3.EntryAttributes:
        for there, entry in self._listings[parent_inode]:
            if there == name:
                return entry
        raise pyfuse3.FUSEError(errno.ENOENT)

    async def opendir(self, inode: int, ctx: object) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        for at, (name, entry) in enumerate(self._listings[fh][start_id:], start_id + 1):
            if not pyfuse3.readdir_reply(token, name, entry, at):
                return

    async def releasedir(self, fh: int) -> None:
        pass

    async def open(self, inode: int, flags: int, ctx: object) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        size = min(size, self._size - off)
        return _ZEROS[:size]

    async def flush(self, fh: int) -> None:
        pass

    async def release(self, fh: int) -> None:
        pass

    async def forget(self, inode_list: object) -> None:
        pass


def main() -> None:
    """Mount and serve until somebody unmounts."""
    place, *shape = sys.argv[1:]
    options = {*pyfuse3.default_options, "subtype=bare"} - {"default_permissions"}
    pyfuse3.init(Bare(Shape(*map(int, shape))), place, options)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close()


if __name__ == "__main__":
    main()
