"""The nodes of `/registry`: how they are made, what they refuse, and when they are dropped."""

import errno

import pytest

from skymount.fs.inode_space import InodeSpace
from skymount.fs.registry.file_names import KeyFileNames
from skymount.fs.registry.nodes import (
    SCRATCH_LIMIT,
    EntryFile,
    KeyDirectory,
    LastContent,
    NodeTable,
    ScratchFile,
)
from skymount.fs.registry.write_buffer import WriteBuffer
from skymount.fs.subtree import InodeAttributes, refuse
from skymount.wire.registry_entry import hash_data_key
from tests.fakes.refusal import refusal

KEY = bytes(range(32))
NAME = KEY.hex().encode()
LIMIT = 100  # bytes of a scratch file


@pytest.fixture
def nodes() -> NodeTable:
    return NodeTable(InodeSpace.REGISTRY, KeyFileNames(b""), LIMIT)


@pytest.fixture
def directory(nodes: NodeTable) -> KeyDirectory:
    return nodes.key_directory(NAME)


def new_buffer() -> WriteBuffer[None]:
    return WriteBuffer(10, b"", None, None)


def entry_file(nodes: NodeTable, directory: KeyDirectory, name: bytes = b"x") -> EntryFile:
    found = nodes.entry_file(directory, name)
    assert found is not None
    return found


def test_one_node_for_each_name(nodes: NodeTable, directory: KeyDirectory):
    """Who asks again gets the same node, and finds it by its inode number."""
    link = nodes.key_link(b"home", KEY)
    file = entry_file(nodes, directory)
    assert nodes.key_directory(NAME) is directory
    assert nodes.key_link(b"home", KEY) is link
    assert nodes.entry_file(directory, b"x") is file
    assert {nodes.get(node.inode) for node in (directory, link, file)} == {directory, link, file}
    assert (directory.public_key, link.target) == (KEY, NAME)
    assert (file.entry_id.public_key, file.entry_id.tweak) == (KEY, hash_data_key("x"))
    assert nodes.directory_names == {NAME}


def test_name_of_no_data_key(nodes: NodeTable, directory: KeyDirectory):
    """G2: it makes no node."""
    assert nodes.entry_file(directory, b"\xff") is None
    assert list(nodes) == [directory]


def test_wrong_kind(nodes: NodeTable, directory: KeyDirectory):
    """A number of nobody is ESTALE, one of a file is no directory."""
    with refusal(errno.ESTALE):
        nodes.get(77)
    with refusal(errno.ENOTDIR):
        nodes.directory(entry_file(nodes, directory).inode)
    assert nodes.directory(directory.inode) is directory


def test_forgotten(nodes: NodeTable, directory: KeyDirectory):
    """With the kernel's last reference goes a file, and its directory if nothing else is in it."""
    file, other = entry_file(nodes, directory), entry_file(nodes, directory, b"y")
    file.references, other.references = 3, 1
    nodes.forget(file.inode, 2)
    assert nodes.get(file.inode) is file
    nodes.forget(file.inode, 1)
    assert directory.files == {b"y": other}
    assert nodes.directory(directory.inode) is directory
    nodes.forget(other.inode, 5)
    nodes.forget(77, 1)
    assert list(nodes) == []
    assert nodes.directory_names == set()


def test_what_is_new_or_open_is_kept(nodes: NodeTable, directory: KeyDirectory):
    """G15: a new file is nowhere else; what is being written is not lost with its name."""
    new, written = entry_file(nodes, directory, b"new"), entry_file(nodes, directory, b"written")
    new.is_new = True
    buffer = written.share_buffer(new_buffer())
    buffer.writers = 1
    for node in (new, written):
        nodes.drop_if_unused(node)
    assert set(directory.files) == {b"new", b"written"}
    written.remove_writer(buffer)
    nodes.drop_if_unused(written)
    assert set(directory.files) == {b"new"}


def test_handles_share_a_buffer(nodes: NodeTable, directory: KeyDirectory):
    """The first one's is everybody's, until the last of them is closed."""
    file = entry_file(nodes, directory)
    first, second = new_buffer(), new_buffer()
    assert file.share_buffer(first) is first
    assert file.share_buffer(second) is first
    first.writers = 2
    file.remove_writer(first)
    assert file.buffer is first
    file.remove_writer(first)
    assert file.buffer is None


def test_new_file_that_could_not_be_posted(nodes: NodeTable, directory: KeyDirectory):
    """It is not left behind when it is closed; one that has nothing to post stays."""
    file = entry_file(nodes, directory)
    for error, stays in ((None, True), (OSError(), False)):
        file.is_new = True
        buffer = file.share_buffer(new_buffer())
        buffer.writers, buffer.error = 1, error
        file.remove_writer(buffer)
        assert file.is_new is stays


def last_of(file: EntryFile) -> LastContent:
    return LastContent(InodeAttributes(file.inode), b"last", {})


def test_removed_or_renamed(nodes: NodeTable, directory: KeyDirectory):
    """G13: What has a file open is parted from its name, which stands for another file then."""
    file = entry_file(nodes, directory)
    file.references, file.is_new = 1, True
    buffer = file.share_buffer(new_buffer())
    with nodes.removing(file, last_of(file)):
        assert file.last == last_of(file)
        assert entry_file(nodes, directory) is file
    assert file.is_removed
    assert buffer.is_cut_off
    assert (file.buffer, file.is_new) == (None, False)
    other = entry_file(nodes, directory)
    assert other is not file
    assert other.inode != file.inode
    assert nodes.get(file.inode) is file


def test_number_of_a_file_that_was_removed(nodes: NodeTable, directory: KeyDirectory):
    """G17: A file has the same inode number again once nobody knows the one that was removed."""
    files = []
    for _ in range(3):
        files.append(entry_file(nodes, directory))
        files[-1].references = 1
        with nodes.removing(files[-1], last_of(files[-1])):
            pass
    numbers = [file.inode for file in files]
    assert len(set(numbers)) == 3
    for number in numbers:
        nodes.forget(number, 1)
    assert entry_file(nodes, directory).inode == numbers[0]


def test_removal_that_fails(nodes: NodeTable, directory: KeyDirectory):
    """G13: what is written meanwhile is refused, later it is not."""
    file = entry_file(nodes, directory)
    buffer = file.share_buffer(new_buffer())
    with refusal(errno.EIO), nodes.removing(file, last_of(file)):
        was_refused = buffer.is_cut_off
        refuse(errno.EIO)
    assert was_refused
    assert not buffer.is_cut_off
    assert (file.last, file.is_removed) == (None, False)
    assert entry_file(nodes, directory) is file


# scratch files


def test_scratch_file(nodes: NodeTable, directory: KeyDirectory):
    """G14: it has the bytes that a file would have, with zeros in a hole."""
    file = nodes.scratch_file(directory, b".x.swp")
    file.write(2, b"ab")
    assert file.data == b"\0\0ab"
    file.resize(3)
    file.resize(5)
    assert file.data == b"\0\0a\0\0"
    assert file.changed_ns > 0


def test_limits_of_scratch_files(nodes: NodeTable, directory: KeyDirectory):
    """G14: each has a limit, all of a directory have four times as much; there are 256."""
    made = [nodes.scratch_file(directory, b"%d" % n) for n in range(SCRATCH_LIMIT)]
    with refusal(errno.ENOSPC):
        nodes.scratch_file(directory, b"one more")
    with refusal(errno.EFBIG):
        made[0].resize(LIMIT + 1)
    for file in made[:4]:
        file.resize(LIMIT)
    with refusal(errno.ENOSPC):
        made[4].write(0, b"x")
    made[0].resize(LIMIT - 1)
    made[4].write(0, b"x")
    assert made[4].data == b"x"


@pytest.mark.parametrize("state", ["is_removed", "is_publishing"])
def test_scratch_file_that_is_going(nodes: NodeTable, directory: KeyDirectory, state: str):
    """What would be written to it now would be lost: ESTALE."""
    file = nodes.scratch_file(directory, b".x.swp")
    setattr(file, state, True)
    with refusal(errno.ESTALE):
        file.write(0, b"x")
    with refusal(errno.ESTALE):
        file.resize(1)
    assert file.data == b""


def test_scratch_file_that_the_kernel_forgot(nodes: NodeTable, directory: KeyDirectory):
    """It is nowhere else, so it stays until it is removed."""
    file: ScratchFile = nodes.scratch_file(directory, b".x.swp")
    nodes.drop_if_unused(file)
    assert nodes.get(file.inode) is file
    nodes.remove_scratch(file)
    assert list(nodes) == []


def test_scratch_file_in_place_of_another(nodes: NodeTable, directory: KeyDirectory):
    """G13: Who has the other one open keeps it; it takes no place of the new one."""
    made = [nodes.scratch_file(directory, b"%d" % n) for n in range(SCRATCH_LIMIT)]
    for file in made[:4]:
        file.resize(LIMIT)
    made[0].references = 1
    new = nodes.scratch_file(directory, b"0", bytes(LIMIT))
    assert directory.scratch[b"0"] is new
    assert made[0].is_removed
    assert nodes.get(made[0].inode) is made[0]
    with refusal(errno.ENOSPC):
        nodes.scratch_file(directory, b"4", b"x")
    assert directory.scratch[b"4"] is made[4]
