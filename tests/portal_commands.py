"""Commands on what a portal stores, the same wherever that is."""

import json
from collections.abc import Sequence

from skymount.wire.skylink import Skylink
from tests.server.http_client import Client
from tests.skymount_process import Sandbox

ABSENT = str(Skylink.v1(b"\7" * 32, 4096))


def use(sandbox: Sandbox, given: Sequence[str], links: list[str]) -> None:
    """Run every command; the first skyfile is pinned, the second removed, the third swept."""
    rows = json.loads(sandbox.succeed("portal", "list", "--json", *given))
    assert {row["skylink"] for row in rows} >= set(links)
    assert links[0] in sandbox.succeed("portal", "list", "--search", "ONE", *given)
    newest = json.loads(sandbox.succeed("portal", "list", "--json", "--start", "0", *given))
    second = sandbox.skymount("portal", "list", "--json", "--start", "1", "--limit", "1", *given)
    assert json.loads(second.stdout) == newest[1:2]
    assert "1 more are not listed" in second.stderr
    pinned = sandbox.succeed("portal", "pin", links[0], "--reason", "for good", *given)
    assert pinned == f"{links[0]} pinned\n"
    shown = json.loads(sandbox.succeed("portal", "show", links[0], "--json", *given))
    assert (shown["name"], shown["size"], shown["reason"]) == ("one", 3, "for good")
    assert "for good" in sandbox.succeed("portal", "show", links[0], *given)
    refused = sandbox.skymount("portal", "remove", links[0], ABSENT, *given)
    assert refused.returncode == 1
    assert refused.stdout == f"{links[0]} pinned\n{ABSENT} absent\n"
    assert "--even-pinned" in refused.stderr
    assert sandbox.succeed("portal", "remove", links[1], *given) == f"{links[1]} removed\n"
    assert "0 skyfiles removed" in sandbox.succeed("portal", "gc", "--keep", "1h", *given)
    swept = json.loads(sandbox.succeed("portal", "gc", "--keep", "0.001s", "--json", *given))
    assert swept["skyfiles"] == 1
    left = json.loads(sandbox.succeed("portal", "list", "--json", *given))
    assert [row["skylink"] for row in left] == [links[0]]
    assert sandbox.succeed("portal", "unpin", links[0], *given) == f"{links[0]} unpinned\n"
    verified = sandbox.succeed("portal", "verify", *given)
    assert verified.startswith("1 skyfile, ")
    assert verified.endswith(": 0 damaged\n")
    absent = sandbox.skymount("portal", "verify", ABSENT, *given)
    assert absent.returncode == 1
    assert f"{ABSENT}: it is not stored" in absent.stdout


def upload(client: Client) -> list[str]:
    return [client.upload_file(name, name.encode()) for name in ("one", "two", "three")]
