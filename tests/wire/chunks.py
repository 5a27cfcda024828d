"""The check of a whole chunk, as it is made of one that arrives: by the hashes of its parts."""

from skymount.wire.base_sector import Layout, hash_part, is_authentic, part_size


def chunk_is_authentic(layout: Layout, fanout: bytes, index: int, chunk: bytes) -> bool:
    """Whether it is the payload's chunk of that index; ValueError when it is larger than one."""
    size = part_size(layout)
    parts = [hash_part(layout, chunk[at : at + size]) for at in range(0, len(chunk), size)]
    return is_authentic(layout, fanout, index, parts)
