from typing import Final

AVX2: Final[bool]
"""Whether this CPU has it, and so `root` uses it."""

def root(
    data: bytes | bytearray | memoryview, start: int, stride: int, portable: bool = False, /
) -> bytes: ...
