"""Names that the kernel knows though their trees were evicted, in a hundred bytes each.

As objects of Python each would take a kilobyte, and the kernel remembers 100,000 of them and more.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from skymount.fs.inode_space import node_inode

_HEAD = struct.Struct("=IIQB")
"""References, files and directories, bytes of content, length of the fingerprint."""

_MOST_REFERENCES = (1 << 32) - 1


class ParkedName(NamedTuple):
    """What is left of a name that does not move, and of its tree."""

    number: int  # its tree number
    name: str
    references: int  # lookups that the kernel has not forgotten
    nodes: int
    size: int  # bytes of content
    fingerprint: bytes  # of the tree (`Skyfile.fingerprint`)

    @property
    def inode(self) -> int:
        return node_inode(self.number, 0)

    def pack(self) -> bytes:
        numbers = (self.references, self.nodes, self.size, len(self.fingerprint))
        return _HEAD.pack(*numbers) + self.fingerprint + self.name.encode()

    @classmethod
    def unpack(cls, number: int, data: bytes) -> "ParkedName":
        references, nodes, size, length = _HEAD.unpack_from(data)
        start = _HEAD.size + length
        fingerprint = data[_HEAD.size : start]
        return cls(number, data[start:].decode(), references, nodes, size, fingerprint)


class ParkedNames:
    """Parked names by their tree numbers."""

    def __init__(self) -> None:
        self._names: dict[int, bytes] = {}
        self.size = self.nodes = 0
        """Bytes of content, and files and directories, of all their trees."""

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, number: int) -> bool:
        return number in self._names

    def __iter__(self) -> Iterator[int]:
        return iter(self._names)

    def get(self, number: int) -> ParkedName | None:
        found = self._names.get(number)
        return None if found is None else ParkedName.unpack(number, found)

    def add(self, parked: ParkedName) -> None:
        self._names[parked.number] = parked.pack()
        self.size += parked.size
        self.nodes += parked.nodes

    def pop(self, number: int) -> ParkedName | None:
        found = self.get(number)
        if found is not None:
            del self._names[number]
            self.size -= found.size
            self.nodes -= found.nodes
        return found

    def refer(self, number: int, change: int) -> bool:
        """Change the number of references; False if there is no such name.

        A name without references is dropped.
        """
        found = self.pop(number)
        if found is None:
            return False
        references = min(_MOST_REFERENCES, found.references + change)
        if references > 0:
            self.add(found._replace(references=references))
        return True
