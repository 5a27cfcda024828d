"""Names whose trees were evicted, packed."""

from skymount.fs.inode_space import node_inode
from skymount.fs.skylinks.parked_names import ParkedName, ParkedNames


def test_parked_names():
    """Parked names are what they were; a reference too many or too few does no harm."""
    names = ParkedNames()
    each = ParkedName(7, "sia:näme", 2, 10, 1 << 40, b"0123456789abcdef")
    names.add(each)
    assert (names.get(7), names.get(8), len(names), list(names)) == (each, None, 1, [7])
    assert each.inode == node_inode(7, 0)
    assert (names.size, names.nodes) == (1 << 40, 10)
    assert names.refer(7, 1 << 40)
    assert names.get(7) == each._replace(references=(1 << 32) - 1)
    assert not names.refer(8, 1)
    assert names.refer(7, -(1 << 40))
    assert (names.get(7), len(names), names.size, names.nodes) == (None, 0, 0, 0)
    assert names.pop(7) is None
