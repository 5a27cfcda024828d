"""Which revisions are claimed, and what is to be posted."""

import signal
import threading
from contextlib import closing
from pathlib import Path

import pytest

from skymount.errors import RevisionError
from skymount.portal.ledger.ledger import Ledger
from skymount.portal.ledger.pending_write import PendingStatus
from tests.portal.ledger.entries import KEY, OTHER, TWEAK, signed
from tests.portal.ledger.processes import start


def test_revision_is_taken_once(ledger: Ledger):
    """G12: a revision that was claimed or seen is never claimed again, nor a lower one."""
    ledger.claim_revision(signed(b"one", 5), "a")
    for revision in (5, 4, 0):
        with pytest.raises(RevisionError):
            ledger.claim_revision(signed(b"two", revision), "a")
    assert ledger.highest_revision(KEY, TWEAK) == 5
    assert ledger.mark_of(KEY, TWEAK) is None
    ledger.record_seen(signed(b"else", 9), "a")
    with pytest.raises(RevisionError):
        ledger.claim_revision(signed(b"two", 9), "a")
    ledger.claim_revision(signed(b"two", 10), "a")


def test_dropped_revision_stays_taken(ledger: Ledger):
    """G12: what is dropped may have been posted all the same."""
    number = ledger.claim_revision(signed(b"one", 5), "a")
    assert ledger.drop(number)
    assert ledger.pending() == []
    assert ledger.highest_revision(KEY, TWEAK) == 5
    assert ledger.mark_posted(number) is None


def test_a_claim_replaces_one(ledger: Ledger):
    """The next try of the same change takes the place of the one that was refused."""
    first = ledger.claim_revision(signed(b"x", 1), "a")
    assert ledger.claim_revision(signed(b"x", 2), "a", replaces=first) == first
    (left,) = ledger.pending()
    assert (left.id, left.signed) == (first, signed(b"x", 2))
    ledger.drop(first)
    ledger.claim_revision(signed(b"x", 3), "a", replaces=first)
    assert len(ledger.pending()) == 1


def test_who_failed_leaves_a_write_to_the_process_that_posts_it_now(ledger: Ledger):
    """G12: sent by one of the mounts; a failure that is recorded late or twice lets no other in."""
    number = ledger.add_unsigned(KEY, TWEAK, "a", b"x", "down", status=PendingStatus.WAITING)
    with closing(Ledger(ledger.path, process=1)) as other:
        assert ledger.begin_retry(number)
        ledger.mark_failed(number, "down", PendingStatus.WAITING)
        assert other.begin_retry(number)
        ledger.mark_failed(number, "down", PendingStatus.FAILED)
        (left,) = ledger.pending()
        assert (left.is_posting, left.status) == (True, PendingStatus.WAITING)
        assert not ledger.begin_retry(number)
        other.mark_failed(number, "refused")
    (left,) = ledger.pending()
    assert (left.is_posting, left.status, left.reason) == (False, PendingStatus.FAILED, "refused")


def test_held_content_is_kept_once(ledger: Ledger):
    """The same content that fails again and again is listed once, with the last reason."""
    ledger.record_seen(signed(revision=4), "a")
    for reason in ("first", "second"):
        ledger.add_unsigned(KEY, TWEAK, "a", b"x", reason)
    (held,) = ledger.pending()
    assert (held.reason, held.base, held.data) == ("second", 4, b"x")
    ledger.add_unsigned(KEY, TWEAK, "a", b"y", "other")
    assert len(ledger.pending()) == 2
    absent = ledger.add_unsigned(OTHER.public_key, TWEAK, "a", b"x", "absent")
    found = ledger.get(absent)
    assert found is not None
    assert found.base == -1


def test_posting_is_by_a_process_that_lives(path: Path):
    """What a process that died was posting is not being posted any more."""
    code = (
        "import sys; from pathlib import Path; from skymount.portal.ledger.ledger import Ledger\n"
        "from tests.portal.ledger.entries import signed\n"
        "ledger = Ledger.open(Path(sys.argv[1]))\n"
        "ledger.claim_revision(signed(), 'a')\n"
        "print(ledger.pending()[0].is_posting, flush=True); sys.stdin.read()\n"
    )
    child = start(code, path)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "True\n"
    ledger = Ledger.open(path)
    assert ledger.pending()[0].is_posting
    child.kill()
    child.communicate()
    (left,) = ledger.pending()
    assert not left.is_posting
    assert "interrupted" in left.reason
    assert ledger.begin_retry(left.id)
    assert ledger.pending()[0].is_posting
    assert ledger.begin_retry(left.id)
    ledger.close()


def test_one_process_takes_on_what_waits(path: Path):
    """G12: by one of the mounts: what another one has taken on is left to it, until it dies."""
    ledger = Ledger.open(path)
    number = ledger.add_unsigned(KEY, TWEAK, "a", b"x", "no portal", status=PendingStatus.WAITING)
    code = (
        "import sys; from pathlib import Path; from skymount.portal.ledger.ledger import Ledger\n"
        "ledger = Ledger(Path(sys.argv[1]))\n"
        "print(ledger.begin_retry(int(sys.argv[2])), flush=True); sys.stdin.read()\n"
    )
    child = start(code, path, str(number))
    assert child.stdout is not None
    assert child.stdout.readline() == "True\n"
    assert not ledger.begin_retry(number)
    child.kill()
    child.communicate()
    assert ledger.begin_retry(number)
    ledger.close()


_CLAIMING = """
import sys
from pathlib import Path
from skymount.errors import RevisionError
from skymount.portal.ledger.ledger import Ledger
from tests.portal.ledger.entries import KEY, TWEAK, signed
name, count = sys.argv[2], int(sys.argv[3])
ledger = Ledger.open(Path(sys.argv[1]))
print("ready", flush=True)
for n in range(count):
    while True:
        highest = ledger.highest_revision(KEY, TWEAK)
        made = signed(f"{name} {n}".encode(), 0 if highest is None else highest + 1)
        try:
            number = ledger.claim_revision(made, "a")
            break
        except RevisionError:
            pass
    print(number, made.entry.revision, made.entry.data.decode(), flush=True)
    if n % 3 == 0:
        ledger.mark_posted(number)
        print("settled", number, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 2, 3, 10, 25])
def test_nothing_that_was_said_is_lost_by_a_kill(path: Path, lines: int):
    """G12: kill -9 at any moment: what was claimed is there, and its revision taken."""
    child = start(_CLAIMING, path, "killed", "100000")
    assert child.stdout is not None
    said = [child.stdout.readline().split() for _ in range(lines)]
    child.send_signal(signal.SIGKILL)
    with child:  # `communicate` would lose what `readline` has buffered
        rest = child.stdout.readlines()
    said += [line.split() for line in rest if line.endswith("\n")]  # one may be cut off
    said = [words for words in said if words and words[0] != "ready"]
    settled = {words[1] for words in said if words[0] == "settled"}
    claimed = {
        words[0]: (int(words[1]), " ".join(words[2:])) for words in said if words[0] != "settled"
    }
    ledger = Ledger.open(path)
    pending = {str(each.id): each for each in ledger.pending()}
    for number, (revision, data) in claimed.items():
        if number in settled:
            assert number not in pending
        elif number in pending:
            found = pending[number].signed
            assert found is not None
            assert (found.entry.revision, found.entry.data.decode()) == (revision, data)
        else:  # settled, and killed before it said so
            assert number == list(claimed)[-1]
    highest = ledger.highest_revision(KEY, TWEAK)
    if claimed:
        assert highest is not None
        assert max(revision for revision, _ in claimed.values()) <= highest
    assert not any(each.is_posting for each in pending.values())
    ledger.claim_revision(signed(b"next", 0 if highest is None else highest + 1), "a")
    ledger.close()


def test_two_processes_never_take_the_same_revision(path: Path):
    """G12: several mounts and commands share the ledger."""
    children = [start(_CLAIMING, path, name, "60") for name in ("one", "two", "three")]
    revisions: list[int] = []
    for child in children:
        out, _ = child.communicate()
        assert child.returncode == 0
        lines = [line.split() for line in out.splitlines()]
        claims = [words for words in lines if words[0] not in ("ready", "settled")]
        assert len(claims) == 60
        revisions += [int(words[1]) for words in claims]
    assert sorted(revisions) == list(range(180))
    ledger = Ledger.open(path)
    assert len(ledger.pending()) == 3 * 40
    ledger.close()


def test_threads_share_a_ledger(ledger: Ledger):
    """Any thread may call at any time."""
    taken: list[int] = []

    def work(name: str) -> None:
        for n in range(20):
            while True:
                highest = ledger.highest_revision(KEY, TWEAK)
                made = signed(f"{name}{n}".encode(), 0 if highest is None else highest + 1)
                try:
                    ledger.mark_posted(ledger.claim_revision(made, "a"))
                    break
                except RevisionError:
                    pass
            taken.append(made.entry.revision)

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(80))
    assert ledger.pending() == []
