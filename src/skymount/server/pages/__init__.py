"""The pages that a browser gets from the portal."""
