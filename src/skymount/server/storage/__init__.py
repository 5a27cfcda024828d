"""What the portal keeps on disk."""
