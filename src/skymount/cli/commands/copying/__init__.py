"""Commands that copy content from portals: to this machine, and to another portal."""
