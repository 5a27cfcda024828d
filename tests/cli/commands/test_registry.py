"""``skymount registry``: entries by the name of a key, or by a public key."""

import json
import os
import re
import subprocess

import httpx
import pytest

from skymount.wire.registry_entry import MAX_REVISION, Entry, entry_link, hash_data_key
from skymount.wire.skylink import Skylink
from tests.cli.helpers import STRANGER, piped_badly, piped_well, post
from tests.fakes.portal import FakePortal, in_thread, redirects
from tests.mount.keys import needs
from tests.mount.namespaces import new_namespace
from tests.skymount_process import LIMIT, SKYMOUNT, Sandbox, run

A = "AABsdvY0MzM9fsdHVWdqiw1Rj4Kp9KAZwYNbHO-ksMFHkg"


def test_set_and_get(box: Sandbox, owner: str) -> None:
    assert box.succeed("registry", "set", "home", "greeting", "hello, world") == "revision 0\n"
    assert box.succeed("registry", "get", "home", "greeting") == "hello, world\n"
    assert box.succeed("registry", "get", owner, "greeting") == "hello, world\n"
    assert box.succeed("registry", "get", f"ed25519:{owner}", "greeting") == "hello, world\n"
    assert box.succeed("registry", "set", "home", "greeting", "again") == "revision 1\n"
    assert box.succeed("registry", "get", "home", "greeting") == "again\n"


def test_the_whole_result_as_json(box: Sandbox, owner: str) -> None:
    link = f"svc://{entry_link(bytes.fromhex(owner), hash_data_key('key'))}"
    expected = {
        "data_key": "key",
        "revision": 0,
        "hex": b"text".hex(),
        "text": "text",
        "skylink": None,
        "public_key": owner,
        "link": link,
    }
    out = box.succeed("registry", "set", "--json", "home", "key", "text")
    assert json.loads(out) == expected
    out = box.succeed("registry", "get", "--json", "home", "key")
    assert out.count("\n") == 1
    found = json.loads(out)
    assert len(found.pop("signature")) == 128
    assert found == expected


def test_a_skylink(box: Sandbox, owner: str) -> None:
    """It is stored as 34 bytes, and shown as a link in the portal's dialect."""
    box.succeed("registry", "set", "--skylink", "home", "site", f"sia://{A}/")
    assert box.succeed("registry", "get", "home", "site") == f"svc://{A}\n"
    assert box.succeed("registry", "get", "--dialect", "skynet", "home", "site") == f"sia://{A}\n"
    found = json.loads(box.succeed("registry", "get", "--json", "home", "site"))
    assert (found["hex"], found["text"]) == (bytes(Skylink(A)).hex(), None)
    assert found["skylink"] == f"svc://{A}"


def test_bytes_of_any_kind(box: Sandbox, owner: str) -> None:
    """They are shown in hex digits, and --raw has them as they are."""
    data = bytes(range(100, 213))
    assert piped_well(box, data, "registry", "set", "home", "bytes") == "revision 0\n"
    assert box.succeed("registry", "get", "home", "bytes") == data.hex() + "\n"
    assert json.loads(box.succeed("registry", "get", "--json", "home", "bytes"))["text"] is None
    done = subprocess.run(
        [*SKYMOUNT, "registry", "get", "--raw", "home", "bytes"],
        env=box.env,
        capture_output=True,
        check=True,
        timeout=LIMIT,
    )
    assert done.stdout == data


def test_hex_digits(box: Sandbox, owner: str) -> None:
    box.succeed("registry", "set", "--hex", "home", "a", "00ff")
    assert piped_well(box, "00 FF\n", "registry", "set", "--hex", "home", "b", "-")
    for key in ("a", "b"):
        assert box.succeed("registry", "get", "home", key) == "00ff\n"


def test_text_of_several_lines(box: Sandbox, owner: str) -> None:
    piped_well(box, "two\nlines\n", "registry", "set", "home", "text")
    assert box.succeed("registry", "get", "home", "text") == "two\nlines\n"
    found = json.loads(box.succeed("registry", "get", "--json", "home", "text"))
    assert found["text"] == "two\nlines\n"


def test_an_empty_entry(box: Sandbox, owner: str) -> None:
    assert box.succeed("registry", "set", "home", "empty", "") == "revision 0\n"
    assert box.succeed("registry", "get", "home", "empty") == "\n"
    assert json.loads(box.succeed("registry", "get", "--json", "home", "empty"))["hex"] == ""


def test_text_cannot_write_to_the_terminal(box: Sandbox, owner: str) -> None:
    piped_well(box, b"\x1b[2Jgone", "registry", "set", "home", "evil")
    assert box.succeed("registry", "get", "home", "evil") == b"\x1b[2Jgone".hex() + "\n"


def test_the_link_leads_to_what_the_entry_points_to(box: Sandbox, owner: str) -> None:
    (box.root / "file").write_text("hello")
    skylink = box.succeed("upload", "file").rstrip()
    link = box.succeed("registry", "link", "home", "site").rstrip()
    box.succeed("registry", "set", "--skylink", "home", "site", skylink)
    assert box.succeed("cat", link) == "hello"
    assert json.loads(box.succeed("registry", "link", "--json", "home", "site")) == {"link": link}


def test_the_url_answers_with_the_entry(box: Sandbox, owner: str) -> None:
    box.succeed("registry", "set", "home", "key", "x")
    url = box.succeed("registry", "url", "home", "key").rstrip()
    assert httpx.get(url).json()["data"] == b"x".hex()
    assert json.loads(box.succeed("registry", "url", "--json", "home", "key")) == {"url": url}


def test_url_and_link_need_no_portal(sandbox: Sandbox) -> None:
    key = "ab" * 32
    with new_namespace(network=True) as made:
        alone = sandbox.within(made.prefix)
        assert alone.succeed("registry", "url", key, "x").startswith("http://127.0.0.1:4280/svc/")
        assert alone.succeed("registry", "link", key, "x").startswith("svc://A")


# Refusals


def test_an_entry_that_is_not_there(box: Sandbox, owner: str) -> None:
    said = box.fail("registry", "get", "home", "absent", code=3)
    assert said == "'absent': there is no such registry entry"
    said = box.fail("registry", "get", "home", "", code=3)
    assert said == "'': there is no such registry entry"


def test_an_entry_that_is_frozen(box: Sandbox, portal: str, owner: str) -> None:
    post(portal, Entry(hash_data_key("key"), b"x", MAX_REVISION))
    private = STRANGER.private_hex
    piped_well(box, private, "key", "import", "--private-key", "stranger")
    said = box.fail("registry", "set", "stranger", "key", "y")
    assert said.startswith("the entry has the last revision there is, and cannot be changed")


def test_a_skylink_with_a_path_is_refused(box: Sandbox, owner: str) -> None:
    """An entry has no place for the path; what is refused is not written."""
    said = box.fail("registry", "set", "--skylink", "home", "site", f"{A}/sub", code=2)
    assert said.startswith("a registry entry holds a skylink without a path: leave out '/sub'")
    box.fail("registry", "get", "home", "site", code=3)


@pytest.mark.parametrize(
    "arguments",
    [
        ["get"],
        ["get", "home"],
        ["get", "bad/name", "key"],
        ["get", "--raw", "--json", "home", "key"],
        ["get", "--wait", "0", "home", "key"],
        ["get", "--wait", "301", "home", "key"],
        ["get", "--wait", "soon", "home", "key"],
        ["set", "home", "key", "--hex", "zz"],
        ["set", "home", "key", "--skylink", "bogus"],
        ["set", "home", "key", "--skylink", "--hex", A],
        ["set", "home", "key", "--revision", "7", "x"],
        ["set", "home", "key", "x" * 114],
        ["link", "home"],
        ["url", "home"],
    ],
)
def test_wrong_use(box: Sandbox, owner: str, arguments: list[str]) -> None:
    box.fail("registry", *arguments, code=2)


def test_input_over_the_limit(box: Sandbox, owner: str) -> None:
    assert "too big" in piped_badly(box, b"x" * 5000, "registry", "set", "home", "key")


def test_a_portal_that_redirects_elsewhere(box: Sandbox, owner: str, portal: str) -> None:
    """C7: what is posted does not leave its origin: a portal cannot have a skykey of another
    deleted, and nothing counts as done.
    """
    box.succeed("skykey", "create", "survivor")
    target = f"{portal}/svc/deleteskykey?name=survivor"
    for code in (307, 308, 301, 302, 303):
        with in_thread(FakePortal()) as liar:
            liar.fault(redirects(target, code), "POST /svc/registry")
            said = box.fail("registry", "set", "--portal", liar.url, "home", "key", "text")
            assert f"redirected ({code}) from {liar.url} to {portal}" in said
            assert "kept, see `skymount registry pending`" in said
        assert "survivor" in box.succeed("skykey", "list")
    box.succeed("skykey", "delete", "survivor")


_SYNC = re.compile(r"(\d+) +f(?:data)?sync\(\d+<(\S+)>(\) += 0| <unfinished)")
_SYNCED = re.compile(r"(\d+) +<\.\.\. f(?:data)?sync resumed>\) += 0")
_WRITE = re.compile(r"\d+ +pwrite64\(\d+<(\S+)>")


@needs("strace")
def test_a_revision_is_on_disk_before_it_is_posted(box: Sandbox, owner: str) -> None:
    """G12: A revision is never signed for two contents: not after a power cut either. So all that
    was written to the ledger is synced when the post begins.
    """
    if run(["strace", "-o", os.devnull, "true"]).returncode:
        pytest.skip("strace may not trace here")
    box.succeed("registry", "set", "home", "greeting", "first")
    trace = box.root / "trace"
    calls = "trace=pwrite64,fsync,fdatasync,write,writev,sendto,sendmsg"
    strace = ("strace", "-f", "-y", "-s", "40", "-e", calls, "-o", trace)
    done = box.run(*strace, *SKYMOUNT, "registry", "set", "home", "greeting", "second")
    assert (done.returncode, done.stdout) == (0, "revision 1\n")
    unsynced: set[str] = set()
    syncing: dict[str, str] = {}
    wrote = False
    for line in trace.read_text(errors="replace").splitlines():
        if "POST /svc/registry" in line:
            break
        if (found := _WRITE.match(line)) and found[1].endswith(("ledger.sqlite3", "-wal")):
            unsynced.add(found[1])
            wrote = True
        elif found := _SYNC.match(line):
            if found[3].startswith(")"):
                unsynced.discard(found[2])
            else:
                syncing[found[1]] = found[2]
        elif found := _SYNCED.match(line):
            unsynced.discard(syncing.pop(found[1], ""))
    else:
        pytest.fail("no post was seen")
    assert wrote
    assert unsynced == set()
