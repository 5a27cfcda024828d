"""Uploads with several portals: to the next one when one fails, to several, and to all of them."""
