"""A mount whose daemon takes a request and is busy for ever: a program."""

import os
import stat
import sys
import time

import pyfuse3
import trio


class _Busy(pyfuse3.Operations):
    async def getattr(self, inode: int, ctx: object = None) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino, entry.st_mode = inode, stat.S_IFDIR | 0o755
        entry.st_uid, entry.st_gid = os.getuid(), os.getgid()
        return entry

    async def lookup(self, parent: int, name: bytes, ctx: object) -> pyfuse3.EntryAttributes:
        time.sleep(3600)  # as a daemon whose event loop hangs
        raise AssertionError


if __name__ == "__main__":
    pyfuse3.init(_Busy(), sys.argv[1], {"fsname=skymount", "subtype=skymount"})
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    trio.run(pyfuse3.main)
