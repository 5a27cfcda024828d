"""What this machine knows of registry entries: revisions seen and claimed, and writes to post."""
