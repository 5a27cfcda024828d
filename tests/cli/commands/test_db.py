"""``skymount db``: JSON documents go in and come out."""

import json

import pytest

from tests.cli.helpers import piped_badly, piped_well
from tests.skymount_process import Sandbox

DOCUMENT = {"hello": "wörld", "list": [1, 2.5, None, True], "deep": {"a": ["\x1b"]}}


def test_set_and_get(box: Sandbox, owner: str) -> None:
    link = piped_well(box, json.dumps(DOCUMENT), "db", "set", "home", "doc").rstrip()
    assert link.startswith("svc://A")
    for key in ("home", owner):
        assert json.loads(box.succeed("db", "get", key, "doc")) == DOCUMENT
    assert json.loads(box.succeed("db", "get", "--json", "home", "doc")) == {
        "data": DOCUMENT,
        "revision": 0,
        "data_link": link,
        "verified": "yes",
    }


def test_a_document_in_a_file(box: Sandbox, owner: str) -> None:
    (box.root / "list.json").write_text("[1, 2]")
    found = json.loads(box.succeed("db", "set", "--json", owner, "doc", "list.json"))
    assert set(found) == {"revision", "data_link"}
    assert found["revision"] == 0
    assert box.succeed("db", "get", "home", "doc") == "[1, 2]\n"
    assert box.succeed("db", "get", "--pretty", "home", "doc") == "[\n  1,\n  2\n]\n"


def test_delete(box: Sandbox, owner: str) -> None:
    piped_well(box, "{}", "db", "set", "home", "doc")
    out = box.succeed("db", "delete", "--json", "home", "doc")
    assert json.loads(out) == {"data_key": "doc", "deleted": True}
    assert box.fail("db", "get", "home", "doc", code=3) == "'doc': it was deleted"
    assert box.succeed("db", "delete", "home", "doc") == ""
    piped_well(box, "[]", "db", "set", "home", "doc")
    assert box.succeed("db", "get", "home", "doc") == "[]\n"


def test_a_document_that_is_not_there(box: Sandbox, owner: str) -> None:
    said = box.fail("db", "get", "home", "absent", code=3)
    assert said == "'absent': there is no such document"


def test_an_entry_that_leads_to_no_document(box: Sandbox, owner: str) -> None:
    (box.root / "page.html").write_text("hello")
    skylink = box.succeed("upload", "page.html").rstrip()
    for data in (["hello"], ["--skylink", skylink]):
        box.succeed("registry", "set", "home", "doc", *data)
        said = box.fail("db", "get", "home", "doc")
        assert said == (
            "'doc': this registry entry is not a JSON document; see it with `skymount registry get`"
        )


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("", "standard input: not JSON"),
        ("{", "standard input: not JSON"),
        ("5", "standard input: a document is an object or an array"),
        ('"text"', "an object or an array"),
        ("[NaN]", "json: "),
        ("[" * 100_000, "standard input: not JSON"),
        (b"\xff", "standard input: not JSON"),
    ],
)
def test_what_is_no_document(box: Sandbox, owner: str, document: str | bytes, words: str) -> None:
    assert words in piped_badly(box, document, "db", "set", "home", "doc")


def test_a_file_that_is_not_there(box: Sandbox, owner: str) -> None:
    assert "'absent' does not exist" in box.fail("db", "set", "home", "doc", "absent", code=2)
    for document in ('{"a": 1}', " [1, 2]"):
        said = box.fail("db", "set", "home", "doc", document, code=2)
        assert "a document is read from a file or standard input" in said


@pytest.mark.parametrize(
    "arguments",
    [["get", "home"], ["set", "home"], ["delete", "home"], ["get", "a/b", "doc"], ["bogus"]],
)
def test_wrong_use(box: Sandbox, owner: str, arguments: list[str]) -> None:
    box.fail("db", *arguments, code=2)


def test_only_an_owner_may_write(box: Sandbox, owner: str) -> None:
    for command in ("set", "delete"):
        assert "the keyring lacks" in box.fail("db", command, "ab" * 32, "doc")
        said = piped_badly(box, "{}", "db", command, "absent", "doc", code=3)
        assert "no key called absent" in said
