"""The zone: how its file is read, changed without harm to what else is in it, and read again."""

import gc
import logging
import os
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skymount.errors import MalformedError, SkymountError, StorageError
from skymount.server.storage import zone_file
from skymount.server.storage.zone_file import (
    RECORDS_LIMIT,
    SIZE_LIMIT,
    ZONE_FILE,
    Zone,
    ZoneFile,
    parse_value,
)
from skymount.wire.dialect import PRESETS, SKYNET, SVC
from skymount.wire.hns import DomainRecord, RegistryRecord, SkylinkRecord, parse_domain
from skymount.wire.skylink import Skylink

A = "AABsdvY0MzM9fsdHVWdqiw1Rj4Kp9KAZwYNbHO-ksMFHkg"
B = "BAAAdvY0MzM9fsdHVWdqiw1Rj4Kp9KAZwYNbHO-ksMFHkg"
KEY, TWEAK = "ab" * 32, "cd" * 32
ENTRY = RegistryRecord(bytes.fromhex(KEY), bytes.fromhex(TWEAK))

BY_HAND = f"""\
# our names

  Example.   sia://{A}/docs   # the manual
example svc://{B}
\tblog\tskyns://ed25519%3A{KEY}/{TWEAK}
bücher {A}
broken something else
.. svc://{A}
lonely
two sia://{A}
two nonsense
# end"""


def found(text: str, domain: str) -> DomainRecord | None:
    """Look a domain up in a file."""
    return Zone.parse(text.encode()).find(domain)


def link_of(text: str, domain: str) -> str:
    """Return the skylink that a domain leads to."""
    record = found(text, domain)
    assert record is not None
    return str(record.skylink)


# Reading


def test_the_last_record_that_fits_wins() -> None:
    assert found(BY_HAND, "example") == SkylinkRecord(f"svc://{B}", Skylink(B), "")
    assert link_of(BY_HAND, "two") == A


def test_a_record_keeps_its_path_and_loses_its_comment() -> None:
    text = BY_HAND.replace(f"example svc://{B}\n", "")
    assert found(text, "example") == SkylinkRecord(f"sia://{A}/docs", Skylink(A), "/docs")


def test_a_registry_entry() -> None:
    assert found(BY_HAND, "blog") == ENTRY
    assert link_of(BY_HAND, "blog") == str(ENTRY.skylink)


def test_domains_are_found_however_they_are_written() -> None:
    assert link_of(BY_HAND, parse_domain("BÜCHER.")) == A
    assert Zone.parse(BY_HAND.encode()).domains == (
        "example",
        "blog",
        "xn--bcher-kva",
        "broken",
        "lonely",
        "two",
    )


def test_a_domain_that_is_not_there() -> None:
    assert found(BY_HAND, "absent") is None
    assert found("", "absent") is None


@pytest.mark.parametrize("domain", ["broken", "lonely"])
def test_a_bad_value_is_an_error_for_its_domain_alone(domain: str) -> None:
    with pytest.raises(MalformedError, match=domain):
        found(BY_HAND, domain)


def test_what_is_wrong_is_said_with_its_line() -> None:
    problems = list(Zone.parse(BY_HAND.encode()).problems())
    assert [problem.partition(":")[0] for problem in problems] == [
        "line 7",
        "line 8",
        "line 9",
        "line 11",
    ]


def test_other_line_ends_and_a_byte_order_mark() -> None:
    text = f"\ufeff# names\r\na svc://{A}\r\nb svc://{B} # second\r\n"
    assert (link_of(text, "a"), link_of(text, "b")) == (A, B)
    marked = f"\ufeffa svc://{A}\n"
    assert link_of(marked, "a") == A


def test_a_fragment_is_no_comment() -> None:
    assert link_of(f"a svc://{A}#part\n", "a") == A


def test_its_size_has_an_end() -> None:
    line = f"a{{}} svc://{A}\n"
    most = "".join(line.format(number) for number in range(RECORDS_LIMIT))
    assert len(Zone.parse(most.encode()).domains) == RECORDS_LIMIT
    with pytest.raises(MalformedError, match="at most 10000 records"):
        Zone.parse((most + line.format("z")).encode())
    for raw in (b"#" * (SIZE_LIMIT + 1), b"#" * SIZE_LIMIT + b"\n\n"):
        with pytest.raises(MalformedError, match="at most 1 MiB"):
            Zone.parse(raw)


@pytest.mark.parametrize(
    ("raw", "domains"),
    [
        (b" " * SIZE_LIMIT, ()),
        (b"a" + b" " * (SIZE_LIMIT - 2) + b"x", ("a",)),
        (b"a b\n" * RECORDS_LIMIT, ("a",)),
    ],
    ids=["space alone", "space within", "one domain over and over"],
)
def test_hostile_lines_take_no_time(raw: bytes, domains: tuple[str, ...]) -> None:
    """A second of the processor is twenty times of what it takes, and a small part of what steps
    for each pair of characters or lines would take. What other tests left for the collector, and
    other threads, do not count.
    """
    gc.disable()
    try:
        begun = time.thread_time()
        read = Zone.parse(raw)
        assert read.domains == domains
        for domain in domains:
            with pytest.raises(MalformedError):
                read.find(domain)
        assert time.thread_time() - begun < 1
    finally:
        gc.enable()


@given(
    st.binary(max_size=2000)
    | st.text(max_size=500).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_any_bytes_are_a_zone(raw: bytes) -> None:
    """Nothing raises, and what is written is what was read."""
    read = Zone.parse(raw)
    expected = raw.removeprefix("\ufeff".encode())
    assert read.encode() == expected.removesuffix(b"\n") + (b"\n" if expected else b"")
    for domain in read.domains:
        assert parse_domain(domain) == domain
        assert isinstance(read.value(domain), str)
        try:
            assert read.find(domain) is not None
        except MalformedError:
            assert any(read.problems())


# Changing


def test_a_change_keeps_everything_else() -> None:
    changed = Zone.parse(BY_HAND.encode()).with_record("blog", f"svc://{B}").encode().decode()
    expected = BY_HAND.replace(f"\tblog\tskyns://ed25519%3A{KEY}/{TWEAK}", f"blog svc://{B}")
    assert changed == expected + "\n"


def test_a_new_value_stands_alone_and_keeps_the_comment() -> None:
    """Other lines of the domain go."""
    text = f"a svc://{A}\n# between\na svc://{A}  # mine\nb svc://{B}\n"
    changed = Zone.parse(text.encode()).with_record("a", f"svc://{B}")
    assert changed.encode().decode() == f"# between\na svc://{B}  # mine\nb svc://{B}\n"


def test_a_new_domain_comes_last() -> None:
    changed = Zone.parse(b"# no line feed here").with_record("a", f"svc://{A}")
    assert changed.encode().decode() == f"# no line feed here\na svc://{A}\n"
    assert Zone().with_record("a", f"svc://{A}").encode().decode() == f"a svc://{A}\n"


def test_removing_takes_every_line_of_a_domain() -> None:
    text = f"# one\na svc://{A}\nb svc://{B}\nA. nonsense\n"
    assert Zone.parse(text.encode()).without("a").encode().decode() == f"# one\nb svc://{B}\n"


def test_bytes_that_are_no_text_are_kept() -> None:
    raw = b"# caf\xe9\na \xff\xfe\n"
    assert Zone.parse(raw).with_record("b", A).encode() == raw + f"b {A}\n".encode()


@pytest.mark.parametrize("value", ["", "x", f"{A}\nb {B}", f"{A}/x # y", f" {A}", f"{A}/\x00"])
def test_a_value_that_would_read_differently_is_refused(value: str) -> None:
    with pytest.raises(MalformedError, match="not the value of a record"):
        Zone().with_record("a", value)


@given(st.data())
def test_what_was_set_is_found(data: st.DataObject) -> None:
    """Whatever is in the file besides."""
    before = Zone.parse(data.draw(st.binary(max_size=300)))
    path = data.draw(st.text(max_size=40))
    try:
        value = parse_value(f"{A}/{path}", SVC)
    except MalformedError:
        return
    after = Zone.parse(before.with_record("a", value).encode())
    assert after.value("a") == value
    assert str(after.find("a").skylink) == A  # type: ignore[union-attr]
    assert "a" not in after.without("a").domains


# What a user writes as a value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (A, f"svc://{A}"),
        (f" {A}\n", f"svc://{A}"),
        (f"{A}/a/b.html", f"svc://{A}/a/b.html"),
        (f"{A}/", f"svc://{A}"),
        (f"{A}/two words", f"svc://{A}/two%20words"),
        (f"sia:{A}", f"sia://{A}"),
        (f"SIA://{A}/x?attachment=true", f"sia://{A}/x"),
        (f"svc://{A}", f"svc://{A}"),
        (f"https://portal.example/{A}/x", f"svc://{A}/x"),
        (Skylink(A).base32, f"svc://{A}"),
        (str(ENTRY.skylink), f"svc://{ENTRY.skylink}"),
        (f"{KEY}/{TWEAK}", f"svcns://ed25519%3A{KEY}/{TWEAK}"),
        (f"ed25519:{KEY}/{TWEAK}", f"svcns://ed25519%3A{KEY}/{TWEAK}"),
        (f"skyns://ed25519%3A{KEY}/{TWEAK}", f"skyns://ed25519%3A{KEY}/{TWEAK}"),
    ],
)
def test_forms_of_a_value(text: str, expected: str) -> None:
    assert parse_value(text, SVC) == expected


def test_the_dialect_is_for_what_has_no_scheme() -> None:
    assert parse_value(A, SKYNET) == f"sia://{A}"
    assert parse_value(f"svc://{A}", SKYNET) == f"svc://{A}"
    assert parse_value(f"{KEY}/{TWEAK}", SKYNET) == f"skyns://ed25519%3A{KEY}/{TWEAK}"


@pytest.mark.parametrize(
    "text", ["", "x", A[:-1], f"{KEY}/", f"{KEY}/{TWEAK}/x", f"{A}/a\nb", f"svc://{A}/\x1b", KEY]
)
def test_what_is_no_value(text: str) -> None:
    with pytest.raises(MalformedError):
        parse_value(text, SVC)


@given(st.text(max_size=200), st.sampled_from(list(PRESETS.values())))
def test_any_text_is_a_value_or_refused(text: str, dialect: object) -> None:
    try:
        value = parse_value(text, dialect)  # type: ignore[arg-type]
    except MalformedError:
        return
    assert Zone().with_record("a", value).value("a") == value


# The file


def test_no_file_is_an_empty_zone(tmp_path: Path) -> None:
    assert zone_file.load(tmp_path) == Zone()
    assert ZoneFile(tmp_path / "absent").current() == Zone()


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """Made, changed in place, replaced, taken away: each is seen at the next look."""
    file = ZoneFile(tmp_path)
    path = tmp_path / ZONE_FILE
    assert file.current().domains == ()
    path.write_text(f"a {A}\n")
    assert str(file.current().find("a").skylink) == A  # type: ignore[union-attr]
    path.write_text(f"a {B}\n")
    assert str(file.current().find("a").skylink) == B  # type: ignore[union-attr]
    zone_file.change(tmp_path, lambda found: found.with_record("b", A))
    assert file.current().domains == ("a", "b")
    path.unlink()
    assert file.current().domains == ()


def test_a_file_that_stays_is_parsed_once(tmp_path: Path) -> None:
    (tmp_path / ZONE_FILE).write_text(f"a {A}\n")
    file = ZoneFile(tmp_path)
    assert file.current() is file.current()


def test_problems_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / ZONE_FILE
    path.write_text("a nonsense\n")
    file = ZoneFile(tmp_path)
    with caplog.at_level(logging.WARNING):
        file.current()
        path.write_text("a nonsense\n\n")
        file.current()
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        f"{path} line 1"
    ]


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    """It is an error each time, until it can be used again."""
    path = tmp_path / ZONE_FILE
    file = ZoneFile(tmp_path)
    path.write_bytes(b"#" * (SIZE_LIMIT + 1))
    for _ in range(2):
        with pytest.raises(StorageError, match="cannot be used"):
            file.current()
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match="cannot read"):
        file.current()
    path.rmdir()
    assert file.current() == Zone()


def test_a_change_is_made_in_one_step(tmp_path: Path) -> None:
    """Nothing is left beside the file, and its permissions stay."""
    zone_file.change(tmp_path, lambda found: found.with_record("a", A))
    path = tmp_path / ZONE_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o664)
    inode = path.stat().st_ino
    (tmp_path / f"{ZONE_FILE}.new").write_text("broken off")
    zone_file.change(tmp_path, lambda found: found.with_record("b", B))
    assert path.stat().st_mode & 0o777 == 0o664
    assert path.stat().st_ino != inode
    assert os.listdir(tmp_path) == [ZONE_FILE]


def test_a_link_to_a_file_elsewhere_stays_one(tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles"
    kept.mkdir()
    (kept / "names").write_text("# kept\n")
    data = tmp_path / "data"
    data.mkdir()
    (data / ZONE_FILE).symlink_to(kept / "names")
    zone_file.change(data, lambda found: found.with_record("a", A))
    assert (data / ZONE_FILE).is_symlink()
    assert (kept / "names").read_text() == f"# kept\na {A}\n"


def test_an_edit_that_fails_changes_nothing(tmp_path: Path) -> None:
    zone_file.change(tmp_path, lambda found: found.with_record("a", A))
    before = (tmp_path / ZONE_FILE).read_bytes()
    with pytest.raises(SkymountError):
        zone_file.change(tmp_path, lambda found: found.with_record("a", "nonsense"))
    assert (tmp_path / ZONE_FILE).read_bytes() == before
    assert os.listdir(tmp_path) == [ZONE_FILE]


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    def write(number: int) -> None:
        for step in range(5):
            zone_file.change(
                tmp_path, partial(Zone.with_record, domain=f"a{number}-{step}", value=A)
            )

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(zone_file.load(tmp_path).domains) == 40
