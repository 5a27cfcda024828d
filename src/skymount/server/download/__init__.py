"""Downloads from the portal."""
