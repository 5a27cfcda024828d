"""Calls the reference SDK: `driver.py PORTAL_URL`, `[options, calls]` as JSON on stdin.

A call is ``[method, argument, ...]``; ``*_request`` methods give ``[status, body as text]``. The
answer on stdout is a JSON list of what each returned. Imports nothing but the SDK and the standard
library, and runs where nothing else is installed.
"""

import json
import sys

import siaskynet


def main() -> None:
    """Make the calls with one client, as a user's program would."""
    options, calls = json.load(sys.stdin)
    client = siaskynet.SkynetClient(sys.argv[1], options)
    results = []
    for name, *arguments in calls:
        result = getattr(client, name)(*arguments)
        if name.endswith("_request"):
            result = [result.status_code, result.content.decode(errors="replace")]
        results.append(result)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
