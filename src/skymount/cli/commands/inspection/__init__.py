"""Commands that look at mounts and at the machine."""
