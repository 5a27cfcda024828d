"""The choice between portals: which one is asked, when, and what their answers mean together."""
