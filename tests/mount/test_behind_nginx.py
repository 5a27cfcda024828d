"""A portal behind a proxy whose buffers are too small for long headers."""

import os
import urllib.error
import urllib.request

import pytest

from tests.nginx import needs_nginx, nginx_before
from tests.skymount_process import Sandbox, output

NAMES = [f"file-{n:05}.txt" for n in range(1000)]


@needs_nginx
def test_large_directory_behind_small_buffers(sandbox: Sandbox, portal: str) -> None:
    """T3: Where a portal fails to send headers, its metadata endpoint is asked."""
    source = sandbox.root / "source"
    source.mkdir()
    for name in NAMES:
        (source / name).write_text(name)
    skylink = sandbox.upload(source, portal)
    without = "location /svc/basesector { return 404; }"
    with nginx_before(portal, sandbox.root / "nginx", without) as url:
        agent = {"User-Agent": "svc-agent"}  # others get no long headers
        request = urllib.request.Request(
            f"{url}/{skylink}?format=concat", None, agent, method="HEAD"
        )
        with pytest.raises(urllib.error.HTTPError, match="502"):
            urllib.request.urlopen(request, timeout=20)
        with sandbox.mounted("--portal", url) as mount:
            tree = mount.skylink(skylink)
            assert sorted(os.listdir(tree)) == NAMES
            assert os.getxattr(tree, "user.skymount.verified") == b"yes"
            assert output(["cat", tree / NAMES[7]]).decode() == NAMES[7]
