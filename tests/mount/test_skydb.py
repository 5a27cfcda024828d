"""``skydb/`` on real mounts: JSON documents as files."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skymount.wire.metadata import Metadata, encode_metadata
from skymount.wire.registry_entry import linked_skylink
from skymount.wire.skylink import Skylink
from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import of_files, unverifiable
from tests.mount.keys import HOME, Owner, needs, program
from tests.mount.proxy import proxy_to
from tests.skymount_process import Sandbox, output, run, xattrs


@pytest.fixture(scope="module")
def files(owner: Owner) -> Iterator[Path]:
    """The directory of its key's documents, mounted."""
    with owner.mounted() as directory:
        yield directory.parent.parent / "skydb" / HOME


def stored(owner: Owner, name: str) -> object:
    """Return the document that the portal has, as the command prints it."""
    found = owner.sandbox.succeed("db", "get", HOME, name, "--portal", owner.portal)
    return json.loads(found)


def test_document(owner: Owner, files: Path) -> None:
    """D1: `skydb/<public key>/<data key>.json` is the JSON document behind the entry, as stored,
    over several lines.

    D2: Writing uploads it, then sets the entry; both are done before close returns.
    """
    document = {"name": "Zoë", "list": [1, 2.5, None, {"deep": []}], "a/b": "\U0001f600"}
    source = owner.sandbox.root / "doc.json"
    source.write_text(json.dumps(document))
    output(["cp", source, files / "doc.json"])
    assert stored(owner, "doc") == document
    text = output(["cat", files / "doc.json"])
    assert json.loads(text) == document
    assert text.decode() == json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    assert output(["ls", files]).decode().split() == ["doc.json"]
    found = xattrs(files / "doc.json")
    assert found["user.skymount.verified"] == "yes"
    held = owner.held("doc")
    assert held is not None
    assert found["user.skymount.data_key"] == "doc"
    assert found["user.skymount.points_to"] == str(linked_skylink(held.entry.data))


def test_both_stored_forms(owner: Owner, files: Path, portal: str) -> None:
    """D1: Both stored forms are read."""
    for name, body in (("plain", {"a": [1]}), ("wrapped", {"_data": {"a": [1]}, "_v": 2})):
        source = owner.sandbox.root / f"{name}.json"
        source.write_text(json.dumps(body))
        skylink = owner.sandbox.upload(source, portal)
        owner.sandbox.succeed("registry", "set", "--skylink", HOME, name, skylink,
                              "--portal", portal)  # fmt: skip
        assert json.loads(output(["cat", files / f"{name}.json"])) == {"a": [1]}


def test_no_document(tmp_path: Path, portal: str) -> None:
    """D1: If an entry's skylink leads to something else, to what is too long, or to what no portal
    has, the file is there all the same: stat, listing and attributes work. What needs the text is
    EIO, and `last_error` says where it leads. It can be rewritten as a whole, and removed.
    """
    owner = Owner.make(Sandbox.make(tmp_path / "home"), portal)
    site = owner.sandbox.directory("site")
    (site / "index.html").write_text("<h1>")
    publish = ("publish", site, "--key", HOME, "--portal", portal, "--as")
    link = Skylink(owner.sandbox.succeed(*publish, "site").rstrip())
    lost = of_files({"lost": b"{}"}).skylink
    owner.put("link", bytes(link))
    owner.put("lost", bytes(lost))
    owner.put("plain", b"no skylink")
    names = ("link", "lost", "site")
    with owner.mounted() as registry:
        files = registry.parent.parent / "skydb" / HOME
        output(["cat", registry / "plain"])
        sizes = {name: (files / f"{name}.json").stat().st_size for name in names}
        assert sizes == dict.fromkeys(names, 34)
        assert output(["ls", f"{files}/"]).decode().split() == [f"{name}.json" for name in names]
        output(["ls", "-l", f"{files}/"])
        output(["du", "-a", f"{files}/"])
        assert output(["find", f"{files}/", "-empty"]) == b""
        for name in names:
            file = files / f"{name}.json"
            assert file.stat().st_mtime == (registry / name).stat().st_mtime
            read = run(["cat", file])
            assert "Input/output error" in read.stderr
            found = xattrs(file)
            assert found["user.skymount.points_to"] in found["user.skymount.last_error"]
            output(["getfattr", "-n", "user.skymount.last_error", file.name], cwd=files)
        copied = run(["cp", "-r", f"{files}/", owner.sandbox.root / "copy"])
        assert (copied.returncode, len(copied.stderr.splitlines())) == (1, len(names))
        assert run(["tar", "cf", "/dev/stdout", "."], cwd=files).returncode
        with program(files) as tool:
            assert tool.do("open('site.json', 'a')") == "EIO"
            assert tool.do("os.rename('site.json', 'other.json')") == "EIO"
            assert tool.do("open('new', 'w')") == "EINVAL"
            assert tool.do("open('site.json~', 'w').write('[2]')") == "3"
        output(["mv", files / "site.json~", files / "site.json"])
        output(["sh", "-c", f"echo '[1]' > {files}/link.json; rm {files}/lost.json"])
        assert (stored(owner, "site"), stored(owner, "link")) == ([2], [1])
        assert owner.data("lost") is None


def test_large_document(owner: Owner, files: Path) -> None:
    """D1: one of nearly 4 MiB is written, read and listed like a small one."""
    code = 'import json; json.dump(["x" * 1000] * 4000, open("large.json", "w"))'
    output([sys.executable, "-c", code], cwd=files)
    assert owner.revision("large") == 0
    found = json.loads(output(["cat", files / "large.json"]))
    assert found == ["x" * 1000] * 4000
    with program(files) as tool:
        assert tool.do("os.truncate('large.json', 4 << 20)") == "EFBIG"


def test_document_of_another_program(owner: Owner, files: Path, portal: str) -> None:
    """D1: one that is too long for the mount is fetched by the command, and rewritten as a file."""
    source = owner.sandbox.root / "long.json"
    source.write_text(json.dumps(["x" * 1000] * 5000))
    owner.sandbox.succeed("db", "set", HOME, "long", source, "--portal", portal)
    with program(files) as tool:
        assert tool.do("open('long.json').read()") == "EIO"
    assert stored(owner, "long") == ["x" * 1000] * 5000
    output(["sh", "-c", f"echo '[1]' > {files}/long.json"])
    assert stored(owner, "long") == [1]


def test_no_json(owner: Owner, files: Path) -> None:
    """D2: Writing checks that it is JSON (EINVAL at close): nothing is changed then."""
    with program(files) as tool:
        assert tool.do("open('bad.json', 'w').write('[1]')") == "3"
        for text in ("{", "text", "1", "[NaN]"):
            assert tool.do("(f := os.open('bad.json', os.O_WRONLY | os.O_TRUNC)) and None")
            assert tool.do(f"os.write(f, {text.encode()!r})") == str(len(text))
            assert tool.do("os.fsync(f)") == "EINVAL"
            assert tool.do("os.close(f)") == "EINVAL"
        assert tool.do("open('bad.json').read()") == repr("[\n  1\n]\n")
        assert tool.do("os.open('new', os.O_CREAT | os.O_WRONLY)") == "EINVAL"
    assert owner.revision("bad") == 0
    assert run(["sh", "-c", "echo text > worse.json"], cwd=files).returncode in (0, 1, 2)
    assert owner.revision("worse") == -1
    assert run(["stat", files / "worse.json"]).returncode


def test_same_document(owner: Owner, files: Path) -> None:
    """G8: Nothing is posted when nothing has changed: neither by copying what is there."""
    with program(files) as tool:
        assert tool.do("open('same.json', 'w').write('[1]')") == "3"
        assert tool.do("(text := open('same.json').read()) and None") == "None"
        assert tool.do("open('same.json', 'w').write(text)") == "8"
    assert owner.revision("same") == 0


def test_removed(owner: Owner, files: Path) -> None:
    """D3: rm deletes the document's entry."""
    with program(files) as tool:
        assert tool.do("open('gone.json', 'w').write('[1]')") == "3"
        assert tool.do("os.unlink('gone.json')") == "None"
        assert tool.do("open('gone.json')") == "ENOENT"
    assert (owner.data("gone"), owner.revision("gone")) == (None, 1)


def test_somebody_else_changes_it(owner: Owner, files: Path) -> None:
    """G10: a partial edit is ESTALE and changes nothing; so it is for documents."""
    _set(owner, "[1]")
    with program(files) as tool:
        assert tool.do("(f := os.open('shared.json', os.O_RDWR)) and None") == "None"
        _set(owner, "[2]")
        assert tool.do("os.pwrite(f, b'9', 4)") == "1"
        assert tool.do("os.close(f)") == "ESTALE"
        assert tool.do("open('shared.json').read()") == repr("[\n  2\n]\n")
    assert stored(owner, "shared") == [2]


def _set(owner: Owner, text: str) -> None:
    source = owner.sandbox.root / "shared.json"
    source.write_text(text)
    owner.sandbox.succeed("db", "set", HOME, "shared", source, "--portal", owner.portal)


@needs("jq", "vim")
def test_tools(owner: Owner, files: Path) -> None:
    """D2: uploads it, then sets the entry: with jq, sed and vim."""
    assert shutil.which("sh")
    script = """
    echo '{"n": 1}' > tool.json
    jq '.n = 2' tool.json > tool.json~ && mv tool.json~ tool.json
    sed -i 's/2/3/' tool.json
    vim --not-a-term -T dumb -u NONE -c '%s/3/4/' -c wq tool.json > /dev/null
    """
    output(["sh", "-ec", script], env={**owner.sandbox.env, "TERM": "dumb"}, cwd=files)
    assert stored(owner, "tool") == {"n": 4}
    assert owner.revision("tool") == 3


def test_portal_that_is_down(owner: Owner, portal: str) -> None:
    """D2: both are done before close returns; else it fails, and the entry is as it was."""
    place = owner.sandbox.directory("down")
    with (
        proxy_to(portal) as proxy,
        owner.mounted(portal=proxy.url, at=place) as registry,
        program(registry.parent.parent / "skydb" / HOME) as tool,
    ):
        assert tool.do("open('down.json', 'w').write('[1]')") == "3"
        proxy.close()
        assert tool.do("(f := open('down.json', 'w')).write('[2]')") == "3"
        assert tool.do("f.close()") == "EIO"
        assert tool.do("open('down.json').read()") == "EIO"
    assert stored(owner, "down") == [1]


def test_text_that_is_not_verified(owner: Owner, portal: str) -> None:
    """D2: A partial edit of a text that was not checked is EIO at close and changes nothing, and so
    is its rename: the log says why. A whole rewrite is not concerned, nor `verify = "off"`.
    """
    doubtful = unverifiable(encode_metadata(Metadata("f", 15)), b'{"pay":"mallo"}')
    place = owner.sandbox.directory("doubtful")
    owner.sandbox.succeed("registry", "set", "--skylink", HOME, "lie", doubtful.name,
                          "--portal", portal)  # fmt: skip
    with in_thread(FakePortal()) as fake:
        fake.add(doubtful)
        portals = ("--portal", fake.url)
        owner.sandbox.configure(f'[[portals]]\nurl = "{fake.url}"\nread_only = true\n')
        with (
            owner.mounted(*portals, at=place) as registry,
            program(registry.parent.parent / "skydb" / HOME) as tool,
        ):
            for flags in ("os.O_RDWR", "os.O_WRONLY | os.O_APPEND"):
                assert tool.do(f"(f := os.open('lie.json', {flags})) and None") == "None"
                assert tool.do("os.write(f, b' ')") == "1"
                assert tool.do("os.close(f)") == "EIO"
            assert tool.do("os.rename('lie.json', 'other.json')") == "EIO"
            assert owner.revision("lie") == 0
            assert owner.revision("other") == -1
            assert tool.do("open('lie.json', 'w').write('[1]')") == "3"
            assert tool.do("(f := os.open('lie.json', os.O_RDWR)) and None") == "None"
            assert tool.do("os.pwrite(f, b'2', 4)") == "1"
            assert tool.do("os.close(f)") == "None"
        assert "could not be checked against its skylink" in owner.sandbox.log.read_text()
        assert stored(owner, "lie") == [2]
        owner.sandbox.succeed("registry", "set", "--skylink", HOME, "lie", doubtful.name,
                              "--portal", portal)  # fmt: skip
        with (
            owner.mounted(*portals, "--verify", "off", at=place) as registry,
            program(registry.parent.parent / "skydb" / HOME) as tool,
        ):
            assert tool.do("(f := os.open('lie.json', os.O_RDWR)) and None") == "None"
            assert tool.do("os.pwrite(f, b' ', 0)") == "1"
            assert tool.do("os.pwrite(f, b'{', 1)") == "1"
            assert tool.do("os.close(f)") == "None"
    assert stored(owner, "lie") == {"pay": "mallo"}
