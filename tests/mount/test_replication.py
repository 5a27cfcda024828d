"""A mount with two real portals of which one is away for a while: it gets what it missed."""

import json
from pathlib import Path

import httpx

from skymount.wire.registry_entry import hash_data_key
from tests.mount.keys import HOME, Owner, until
from tests.portal_process import portal_process
from tests.ports import unused_port
from tests.skymount_process import Sandbox, output


def test_a_portal_that_was_away_gets_documents_and_what_was_published(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """W4, W5: both, with their content. Then the other portal may end."""
    with portal_process(tmp_path / "first") as first:
        listen = ("--listen", f"127.0.0.1:{unused_port()}")
        with portal_process(tmp_path / "second", *listen) as second:
            url = second.url
            owner = Owner.make(sandbox, first.url)
            doc = sandbox.root / "doc.json"
            doc.write_text('{"a": 0}')
            both = ("--portal", first.url, "--portal", url)
            sandbox.succeed("db", "set", *both, HOME, "doc", doc)
        site = sandbox.directory("site")
        (site / "index.html").write_text("<p>")
        with owner.mounted("--portal", url) as directory:
            skydb = directory.parent.parent / "skydb" / HOME
            doc.write_text('{"a": 1}')
            output(["cp", doc, skydb / "doc.json"])
            done = sandbox.skymount("publish", *both, site, "--key", HOME, "--as", "site")
            assert done.returncode == 0, done.stderr
            link = done.stdout.rstrip()
            with portal_process(tmp_path / "second", *listen) as again:
                until(
                    lambda: _has(again.url, owner, "doc", 1) and _has(again.url, owner, "site", 0)
                )
                first.kill()
                only = ("--portal", again.url)
                assert json.loads(sandbox.succeed("db", "get", *only, HOME, "doc")) == {"a": 1}
                assert sandbox.succeed("cat", *only, f"{link}/index.html") == "<p>"
                assert output(["cat", skydb / "doc.json"]) == b'{\n  "a": 1\n}\n'


def _has(url: str, owner: Owner, name: str, revision: int) -> bool:
    question = {
        "publickey": f"ed25519:{owner.pair.public_hex}",
        "datakey": hash_data_key(name).hex(),
    }
    answer = httpx.get(f"{url}/svc/registry", params=question)
    return answer.status_code == 200 and answer.json()["revision"] == revision
