"""Other portals that this one fetches from what it does not have."""
