"""The bytes of immutable content: what a skylink holds, verified, cached, read by offset."""
