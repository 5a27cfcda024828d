"""Remote portals over HTTP: one client per portal, and failover between them."""

import sys

# With click and rich installed, httpx loads a command line of its own at import: 80 ms and 6 MB.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
