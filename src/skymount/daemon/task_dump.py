"""The tasks of a mount and where each one waits, for the log."""

from collections.abc import Iterable, Iterator, Mapping

import trio

from skymount.wording import counted

_TASKS = 300  # that are looked at
_LINES = 600
_FRAMES = 12  # of a task, the innermost
_CORE = "trio/_core/"


def dump(under_way: Mapping[int, tuple[str, float]]) -> list[str]:
    """Return the kernel's requests under way and the tree of tasks. A few milliseconds at most."""
    now = trio.current_time()
    lines = [f"{counted(len(under_way), 'request')} of the kernel under way"]
    lines += [f"  {kind} for {now - begun:.1f} s" for kind, begun in list(under_way.values())[:50]]
    root = trio.lowlevel.current_root_task()
    if root is not None:
        lines += _limited(_task_lines([root], "", [_TASKS]))
    return lines


def _limited(lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number == _LINES:
            yield f"more than {_LINES} lines: the rest is left out"
            return
        yield line


def _task_lines(tasks: Iterable[trio.lowlevel.Task], indent: str, left: list[int]) -> Iterator[str]:
    """Yield the lines of tasks and their children; tasks that wait alike are counted.

    `left` is how many tasks may still be looked at.
    """
    alike: dict[tuple[str, ...], list[trio.lowlevel.Task]] = {}
    for task in tasks:
        if not left[0]:
            yield f"{indent}more than {_TASKS} tasks: the rest is left out"
            break
        left[0] -= 1
        key = (task.name, *_frames(task)) if not task.child_nurseries else (str(id(task)),)
        alike.setdefault(key, []).append(task)
    for same in alike.values():
        task = same[0]
        yield f"{indent}task {task.name}" + (f" ({len(same)} of them)" if len(same) > 1 else "")
        yield from (f"{indent}  {frame}" for frame in _frames(task))
        for nursery in task.child_nurseries:
            yield from _task_lines(nursery.child_tasks, f"{indent}    ", left)


def _frames(task: trio.lowlevel.Task) -> list[str]:
    """Return where a task waits, its innermost frame last, without those inside of trio's core."""
    found = [
        f"{_short(frame.f_code.co_filename)}:{number} {frame.f_code.co_name}"
        for frame, number in task.iter_await_frames()
    ]
    while len(found) > 1 and found[-1].startswith(_CORE):
        found.pop()
    return found[-_FRAMES:]


def _short(path: str) -> str:
    """Return a path from its package on."""
    for above in ("/site-packages/", "/src/"):
        _, found, below = path.rpartition(above)
        if found:
            return below
    return path
