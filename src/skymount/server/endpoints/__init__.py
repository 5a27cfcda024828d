"""The small endpoints: registry, skykeys, names, sectors, statistics."""
