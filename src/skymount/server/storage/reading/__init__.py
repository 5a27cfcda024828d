"""What commands read of a portal's data, beside portals that run."""
