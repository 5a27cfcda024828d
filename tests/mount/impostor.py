"""A mount that says that it is skymount's, and names whatever process it is told to: a program."""

import os
import stat
import sys

import pyfuse3
import trio


class _Impostor(pyfuse3.Operations):
    async def getattr(self, inode: int, ctx: object = None) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino, entry.st_mode = inode, stat.S_IFDIR | 0o755
        entry.st_uid, entry.st_gid = os.getuid(), os.getgid()
        return entry

    async def getxattr(self, inode: int, name: bytes, ctx: object) -> bytes:
        return sys.argv[2].encode()


if __name__ == "__main__":
    options = {"fsname=skymount", "subtype=skymount", "allow_other"}
    pyfuse3.init(_Impostor(), sys.argv[1], options)
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    trio.run(pyfuse3.main)
    pyfuse3.close(unmount=False)
