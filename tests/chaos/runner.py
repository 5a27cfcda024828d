"""Runs schedules: faults in one thread, work in others, and a judge of each result."""

import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skymount.wire.registry_entry import linked_skylink
from tests.chaos.arena import SITE, Arena
from tests.chaos.oracle import Report
from tests.chaos.schedule import Schedule
from tests.chaos.work import DOCUMENTS, ENTRIES, Memory, Operation, Work, expected_entry, pause
from tests.chaos.work import value_of as document_value
from tests.skymount_process import close_pipes

COMMAND_LIMIT = 90.0
RECOVERY = 8.0
"""Seconds after a time without any healthy portal in which operations may still fail: paused
portals are tried again (R12)."""
DEBTS_LIMIT = 60.0


class HungError(Exception):
    """A worker gave no answer."""


class WorkerProcess:
    """A program that uses the mount."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-IS", str(Path(__file__).parent / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def do(self, told: dict[str, Any], limit: float) -> dict[str, Any]:
        """Have something done; HungError if that takes longer than `limit` seconds."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(told).encode() + b"\n")
        stdin.flush()
        if not select.select([stdout], [], [], limit)[0]:
            raise HungError
        found = json.loads(stdout.readline() or b'{"error": "the worker ended"}')
        assert isinstance(found, dict)
        return found

    def end(self) -> None:
        self._process.kill()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:  # stuck in the kernel until the mount is gone
            self._process.returncode = -9
        close_pipes(self._process)


class Runner:
    """Runs one schedule after the other in an arena."""

    def __init__(self, arena: Arena, slack: float) -> None:
        self.arena = arena
        self.slack = slack
        """Seconds that a system call may take beyond the time-outs of its operations."""
        self.memory = Memory()
        self.report = Report()
        self.durations: dict[str, list[float]] = {}
        """Seconds that each kind of operation took, if it was right while a portal was healthy."""
        self._lock = threading.Lock()
        self._workers: dict[str, WorkerProcess] = {}
        self._schedule = ""
        self._began = time.monotonic()
        self._tracebacks = 0

    @property
    def syscall_limit(self) -> float:
        return self.arena.setting.timeout + self.slack

    def prepare(self) -> None:
        """Publish a first page, so that there is something behind the names that move."""
        if not self.arena.setting.writes:
            return
        work = Work(self.arena, self.memory, 0)
        for operation in work.streams()["commands"]:
            self._one("commands", operation)
            if operation.name == "publish":
                break

    def close(self) -> None:
        for worker in self._workers.values():
            worker.end()

    def run(self, schedule: Schedule) -> None:
        self._schedule = str(schedule)
        self._began = time.monotonic()
        over = threading.Event()
        work = Work(self.arena, self.memory, schedule.seed)
        threads = [
            threading.Thread(target=self._work, args=(name, stream, over), name=name)
            for name, stream in work.streams().items()
        ]
        for thread in threads:
            thread.start()
        try:
            for step in schedule.steps:
                self.arena.take(step)
        finally:
            over.set()
            for portal in range(self.arena.setting.portals):
                self.arena.heal(portal)
            for thread in threads:
                thread.join()
        self.report.schedules += 1
        self._check_log()

    def _work(self, name: str, stream: Iterator[Operation], over: threading.Event) -> None:
        try:
            while not over.is_set():
                self._one(name, next(stream))
        except BaseException as error:
            self._violation(f"the harness failed: {error!r}")
            raise

    def _one(self, name: str, operation: Operation) -> None:
        self.arena.mounted.wait(COMMAND_LIMIT)
        operation.begin()
        begun = time.monotonic()
        if operation.command:
            found = self._command(operation)
        else:
            if name not in self._workers:
                self._workers[name] = WorkerProcess()
            limit = 8 * self.syscall_limit
            try:
                found = self._workers[name].do(dict(operation.told), limit)
            except HungError:
                found = {"begun": begun, "ended": time.monotonic(), "error": "hung"}
                found["slowest"] = ("unknown", limit)
                self._workers.pop(name).end()
        if operation.name != "pause":
            self._judge(operation, found)

    def _command(self, operation: Operation) -> dict[str, Any]:
        if operation.command[0] == "pause":
            return pause(operation.command)
        begun = time.monotonic()
        try:
            done = self.arena.sandbox.skymount(*operation.command, limit=COMMAND_LIMIT)
        except AssertionError:
            self._violation(f"hang: {operation.name} took over {COMMAND_LIMIT} s")
            return {"begun": begun, "ended": time.monotonic(), "slowest": ("", 0.0), "error": "?"}
        found = {"begun": begun, "ended": time.monotonic(), "slowest": ("", 0.0)}
        if done.returncode:
            found["error"] = done.stderr.strip()[-300:]
        if "Traceback" in done.stderr:
            self._violation(f"traceback of {operation.name}: {done.stderr[-2000:]}")
        return found

    # --- judging

    def _violation(self, text: str) -> None:
        with self._lock:
            self.report.violations.append(f"{text} [{self._schedule}]")

    def _judge(self, operation: Operation, found: dict[str, Any]) -> None:
        killed = self.arena.was_killed(found["begun"], found["ended"])
        if killed and found.get("error") == "ENOENT":
            found["error"] = "ENOTCONN"  # the mount point without a mount
        wrong = operation.judge(found)
        if wrong and not self._is_provisional(operation):
            self._violation(f"{self._told(operation, found)}: {wrong}")
        call, seconds = found["slowest"]
        if seconds > self._bound(call) and not killed:
            self._violation(f"hang: {self._told(operation, found)}: {call} took {seconds:.1f} s")
        tally, name = self.report.tally, operation.name
        with self._lock:
            if "error" not in found or self._is_right(operation, found):
                tally.right[name] += 1
                if not self.arena.all_broken(found["begun"] - RECOVERY, found["ended"]):
                    taken = found["ended"] - found["begun"]
                    self.durations.setdefault(name, []).append(taken)
            elif why := self._excuse(operation, found):
                tally.excused[why] += 1
            else:
                tally.wrong[name] += 1
                self.report.failures.append(f"{self._told(operation, found)} [{self._schedule}]")

    def _bound(self, call: str) -> float:
        """Each operation may take the whole time-out. A path may take two operations, and so may a
        read: what the kernel could not read ahead, it reads once more.
        """
        steps = 1 if call in ("close", "pwrite") else 2
        return steps * self.arena.setting.timeout + self.slack

    def _is_right(self, operation: Operation, found: dict[str, Any]) -> bool:
        """Of what is absent, ENOENT is the right answer; `judge` has seen whether it is absent."""
        can_be_absent = operation.name in ("get", "append", "remove")
        return bool(found["error"] == "ENOENT" and can_be_absent)

    def _excuse(self, operation: Operation, found: dict[str, Any]) -> str:
        """Return why an operation may fail, or nothing."""
        begin, end = found["begun"], found["ended"]
        if self.arena.was_killed(begin, end):
            return "no daemon"
        if self.arena.all_broken(begin - RECOVERY, end):
            return "no healthy portal"
        is_known = self.arena.posts.is_known(self.arena.pair, operation.entry)
        if operation.entry and not is_known and not operation.name.startswith("put"):
            return (
                "an entry that no portal has yet"  # nor the broken one, for all anybody knows: L4
            )
        of_all = (*ENTRIES, *DOCUMENTS, SITE) if operation.name == "names" else ()
        needed = [operation.entry] if operation.entry else of_all
        if not all(expected_entry(self.arena, each, begin, end) for each in needed):
            return "newest entry not at a healthy portal"
        if operation.entry and not operation.is_certain:
            return "an earlier write failed"
        return ""

    def _is_provisional(self, operation: Operation) -> bool:
        """Whether the mount said that it cannot prove this content now (T6)."""
        if self.arena.setting.verify == "require" or not operation.skylink:
            return False
        log = self.arena.log_text()
        return any("provisional" in line and operation.skylink in line for line in log.splitlines())

    def _told(self, operation: Operation, found: dict[str, Any]) -> str:
        at = found["begun"] - self._began
        taken = found["ended"] - found["begun"]
        path = operation.told.get("path", "")
        place = str(path).removeprefix(str(self.arena.path))
        error = found.get("error", "")
        return f"{operation.name} {place} after {at:.2f} s, in {taken:.2f} s: {error}".strip()

    def _check_log(self) -> None:
        text = self.arena.log_text()
        count = text.count("Traceback (most recent call last)")
        if count > self._tracebacks:
            at = text.rindex("Traceback (most recent call last)")
            self._violation(f"traceback in the log: {text[max(0, at - 300) : at + 3000]}")
        self._tracebacks = count

    # --- the end

    def settle(self) -> None:
        """With all portals healthy, see that nothing acknowledged is lost."""
        for twice in self.arena.posts.twice:
            self._violation(f"signed twice: {twice}")
        if not self.arena.setting.writes:
            return
        self._schedule = "at the end"
        deadline = time.monotonic() + DEBTS_LIMIT
        while wrong := self._wrong_entries():
            if time.monotonic() > deadline:
                for each in wrong:
                    self._violation(each)
                return
            self.arena.sandbox.skymount("registry", "retry")
            time.sleep(0.5)

    def _wrong_entries(self) -> list[str]:
        """Return what each portal has that it must not have."""
        wrong = []
        for entry in (*ENTRIES, *DOCUMENTS):
            history = self.memory.history(entry)
            held = {}
            for number, backend in enumerate(self.arena.backends):
                signed = self.arena.held(backend, entry)
                is_absent = signed is None or signed.entry.is_deleted
                data = None if is_absent else signed.entry.data
                held[number] = (-1 if signed is None else signed.entry.revision, data)
            if len({data for _, data in held.values()}) > 1:
                wrong.append(f"portals differ: {entry} is {held}")
            elif entry in ENTRIES:
                data = held[0][1]
                value = None if data is None else data.decode("latin-1")
                if value not in history.allowed:
                    wrong.append(f"lost: {entry} is {held}, not one of {history.allowed}")
        return wrong + self._wrong_documents() + self._missing_content()

    def _missing_content(self) -> list[str]:
        """Return the portals that have an entry, but not what it leads to."""
        wrong = []
        for entry in (*DOCUMENTS, SITE):
            for number, backend in enumerate(self.arena.backends):
                signed = self.arena.held(backend, entry)
                skylink = signed and linked_skylink(signed.entry.data)
                if skylink and not self.arena.has_content(backend, str(skylink)):
                    wrong.append(f"portal {number} lacks the content of {entry}: {skylink}")
        return wrong

    def _wrong_documents(self) -> list[str]:
        """Return the documents that the mount does not show as they were written."""
        wrong = []
        for entry in DOCUMENTS:
            path = self.arena.path / "skydb/home" / f"{entry}.json"
            done = self.arena.sandbox.run("cat", path)
            allowed = self.memory.history(entry).allowed
            if done.returncode:
                if None not in allowed or "No such file" not in done.stderr:
                    wrong.append(f"lost: {entry}: {done.stderr}, not one of {allowed}")
            elif document_value(done.stdout) not in allowed:
                wrong.append(f"lost: {entry} is {done.stdout[:60]}, not one of {allowed}")
        return wrong


@contextmanager
def runner(arena: Arena, slack: float = 5.0) -> Iterator[Runner]:
    """Run schedules, and end what that started."""
    made = Runner(arena, slack)
    try:
        made.prepare()
        yield made
    finally:
        made.close()
