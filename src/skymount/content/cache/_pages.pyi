from typing import Literal

def store(
    temporary: bytes, path: bytes, data: bytes | memoryview, seal: bytes, page: int, /
) -> int: ...
def load(
    path: bytes, data: memoryview, seal_size: int, page: int, touch: bool, /
) -> bytes | Literal[False] | None: ...
