"""Remote portals over HTTP: one client per portal, and failover between them."""
