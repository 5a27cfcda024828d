"""Uploads to the portal."""
