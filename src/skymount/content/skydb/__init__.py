"""SkyDB documents as text."""
