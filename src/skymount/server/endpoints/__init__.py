"""The portal's small endpoints."""
