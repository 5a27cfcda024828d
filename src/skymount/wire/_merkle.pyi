from typing import Final

Data = bytes | bytearray | memoryview

FORMS: Final[tuple[str, ...]]
"""The forms of the code that this CPU can run, the fastest first."""

def groups(data: Data, start: int, stride: int, form: int = 0, /) -> bytes: ...
def join(roots: Data, form: int = 0, /) -> bytes: ...
