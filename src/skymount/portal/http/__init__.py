"""HTTP requests to a portal and their responses."""
