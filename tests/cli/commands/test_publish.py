"""``skymount publish``, and who owns the revisions of entries on this machine."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from skymount.wire.registry_entry import MAX_REVISION, Entry, entry_link, hash_data_key
from skymount.wire.skylink import Skylink
from tests.cli.helpers import STRANGER, piped_well, post
from tests.portal_process import running_portal
from tests.skymount_process import Sandbox

PUBLISH = ("publish", "site", "--key", "home", "--as", "site")


def write(box: Sandbox, **files: str) -> None:
    """Write the files of the site."""
    (box.root / "site").mkdir(exist_ok=True)
    for name, content in files.items():
        (box.root / "site" / name).write_text(content)


def held(box: Sandbox) -> list[dict[str, object]]:
    found = json.loads(box.succeed("registry", "pending", "--json"))
    assert isinstance(found, list)
    return found


def get(box: Sandbox, data_key: str) -> dict[str, object]:
    """Return an entry as the portal has it."""
    found = json.loads(box.succeed("registry", "get", "--json", "home", data_key))
    assert isinstance(found, dict)
    return found


@contextmanager
def without_registry(upstream: str) -> Iterator[str]:
    """Run a portal that takes uploads, and fails at every entry."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(503, b"{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.startswith("/svc/registry"):
                self._answer(503, b"{}")
            else:
                kept = {name: self.headers[name] for name in ("User-Agent", "Content-Type")}
                answer = httpx.post(upstream + self.path, content=body, headers=kept)
                self._answer(answer.status_code, answer.content)

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_link_stays_the_same(box: Sandbox, owner: str) -> None:
    """It is a skylink of 46 characters, and leads to what was published last."""
    write(box, page="one")
    link = box.succeed(*PUBLISH).removesuffix("\n")
    assert len(link) == 46
    assert link == str(entry_link(bytes.fromhex(owner), hash_data_key("site")))
    assert box.succeed("cat", f"{link}/page") == "one"
    write(box, page="two")
    assert box.succeed(*PUBLISH) == f"{link}\n"
    assert box.succeed("cat", f"{link}/page") == "two"


def test_the_whole_result_as_json(box: Sandbox, owner: str) -> None:
    """The entry holds the 34 bytes of the upload's skylink."""
    write(box, page="one")
    found = json.loads(box.succeed(*PUBLISH, "--json"))
    skylink = box.succeed("upload", "site").removesuffix("\n")
    link = str(entry_link(bytes.fromhex(owner), hash_data_key("site")))
    assert found == {"skylink": skylink, "link": link, "revision": 0}
    assert get(box, "site")["hex"] == bytes(Skylink(skylink)).hex()
    assert json.loads(box.succeed(*PUBLISH, "--json"))["revision"] == 1


def test_a_single_file_and_a_hashed_data_key(box: Sandbox, owner: str) -> None:
    write(box, page="one")
    hashed = hash_data_key("site").hex()
    link = box.succeed("publish", "site/page", "--key", owner, "--as", hashed, "--hashed").rstrip()
    assert link == str(entry_link(bytes.fromhex(owner), hash_data_key("site")))
    assert box.succeed("cat", link) == "one"


def test_empty_directories_are_named(box: Sandbox, owner: str) -> None:
    write(box, page="one")
    (box.root / "site/nothing").mkdir()
    done = box.skymount(*PUBLISH)
    assert (done.returncode, len(done.stdout)) == (0, 47)
    assert done.stderr == "skymount: warning: site/nothing: empty, and not part of the upload\n"


def test_entry_that_cannot_be_posted_is_kept(box: Sandbox, portal: str, owner: str) -> None:
    """G12: What could not be posted is kept on disk."""
    write(box, page="one")
    with without_registry(portal) as url:
        said = box.with_env(SKYMOUNT_PORTALS=url).fail(*PUBLISH)
    assert "it is kept, see `skymount registry pending`" in said
    [kept] = held(box)
    assert kept["data_key"] == "site"
    box.succeed("registry", "retry")
    link = entry_link(bytes.fromhex(owner), hash_data_key("site"))
    assert box.succeed("cat", f"{link}/page") == "one"


def test_nothing_is_kept_of_what_was_not_uploaded(box: Sandbox, owner: str) -> None:
    write(box, page="one")
    assert "cannot be reached" in box.with_env(SKYMOUNT_PORTALS="http://127.0.0.1:1").fail(*PUBLISH)
    assert held(box) == []


def test_frozen_entry(box: Sandbox, portal: str) -> None:
    write(box, page="one")
    post(portal, Entry(hash_data_key("site"), b"x", MAX_REVISION))
    piped_well(box, STRANGER.private_hex, "key", "import", "--private-key", "stranger")
    said = box.fail("publish", "site", "--key", "stranger", "--as", "site")
    assert said.startswith("the entry has the last revision there is")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("publish", "site", "--key", "home"), 2, "--as"),
        (("publish", "site", "--as", "site"), 2, "--key"),
        (("publish", "absent", "--key", "home", "--as", "site"), 2, "absent"),
        (("publish", "none", "--key", "home", "--as", "site"), 2, "there is no file in it"),
        (("publish", "site", "--key", "nobody", "--as", "site"), 3, "no key called nobody"),
        (("publish", "site", "--key", "ab" * 32, "--as", "site"), 1, "lacks the private key"),
        (("publish", "site", "--key", "home", "--as", "site", "--hashed"), 2, "hex"),
    ],
)
def test_wrong_use(
    box: Sandbox, owner: str, arguments: tuple[str, ...], code: int, words: str
) -> None:
    write(box, page="one")
    (box.root / "none").mkdir()
    assert words in box.fail(*arguments, code=code)


# `registry set`, `db set` and `db delete` take their revisions from the same place.


@pytest.fixture
def empty(box: Sandbox, tmp_path: Path) -> Iterator[Sandbox]:
    """The same home with another portal, which hides all entries that the first one has."""
    with running_portal(tmp_path) as url:
        yield box.with_env(SKYMOUNT_PORTALS=url)


def test_no_revision_is_taken_twice(box: Sandbox, empty: Sandbox, owner: str) -> None:
    """G12: A revision is never signed for two contents.

    Not even where a portal says that there is no entry.
    """
    write(box, page="one")
    for n in range(3):
        assert box.succeed("registry", "set", "home", "text", str(n)) == f"revision {n}\n"
    assert empty.succeed("registry", "set", "home", "text", "x") == "revision 3\n"
    assert json.loads(piped_well(box, "[1]", "db", "set", "--json", "home", "doc"))["revision"] == 0
    other = json.loads(piped_well(empty, "[2]", "db", "set", "--json", "home", "doc"))
    assert other["revision"] == 1
    empty.succeed("db", "delete", "home", "doc")
    assert empty.skymount("registry", "get", "home", "doc").returncode == 3
    for sandbox, n in ((box, 0), (empty, 1), (empty, 2)):
        assert json.loads(sandbox.succeed(*PUBLISH, "--json"))["revision"] == n
    assert held(box) == []


def test_portal_that_is_away(box: Sandbox, owner: str) -> None:
    """G12: What could not be posted is kept on disk; a deletion that nobody signed is not."""
    away = box.with_env(SKYMOUNT_PORTALS="http://127.0.0.1:1")
    kept = "it is kept, see `skymount registry pending`"
    assert kept in away.fail("registry", "set", "home", "text", "hello")
    assert [each["data_key"] for each in held(box)] == ["text"]
    assert kept not in away.fail("db", "delete", "home", "doc")
    assert [each["data_key"] for each in held(box)] == ["text"]
    assert box.succeed("registry", "retry") == "1: home/text, revision 0\n"
    assert box.succeed("registry", "get", "home", "text") == "hello\n"


def test_document_whose_entry_cannot_be_posted(box: Sandbox, portal: str, owner: str) -> None:
    """G12: the document is uploaded, and its entry is kept."""
    (box.root / "doc.json").write_text("[1, 2]")
    with without_registry(portal) as url:
        away = box.with_env(SKYMOUNT_PORTALS=url)
        assert "it is kept" in away.fail("db", "set", "home", "doc", "doc.json")
    assert box.succeed("registry", "retry") == "1: home/doc, revision 0\n"
    assert box.succeed("db", "get", "home", "doc") == "[1, 2]\n"


def test_deleting_what_is_not_there_posts_nothing(box: Sandbox, owner: str) -> None:
    box.succeed("db", "delete", "home", "absent")
    box.fail("registry", "get", "home", "absent", code=3)


def test_ledger_that_is_damaged(box: Sandbox, owner: str) -> None:
    """Nothing is uploaded or signed, and the file is named."""
    write(box, page="one")
    box.succeed("registry", "pending")
    path = box.root / "state/skymount/ledger.sqlite3"
    path.write_bytes(b"")
    for command in (PUBLISH, ("registry", "set", "home", "text", "x")):
        assert str(path) in box.fail(*command)


def test_what_a_browser_is_shown(box: Sandbox, portal: str, owner: str) -> None:
    """The options are those of `skymount upload`."""
    write(box, **{"index.html": "home", "lost.html": "lost"})
    pages = ("--try-file", "index.html", "--error-page", "404=/lost.html")
    link = box.succeed(*PUBLISH, *pages).strip()
    answer = httpx.get(f"{portal}/{link}/nothing", follow_redirects=True)
    assert (answer.status_code, answer.text) == (404, "lost")
    found = httpx.get(f"{portal}/skynet/metadata/{link}").json()
    assert found["tryfiles"] == ["index.html"]
    link = box.succeed(*PUBLISH, "--default-path", "lost.html").strip()
    assert httpx.get(f"{portal}/{link}/", follow_redirects=True).text == "lost"
    box.fail(*PUBLISH, "--error-page", "404", code=2)
