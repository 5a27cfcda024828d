"""Commands on the data of a portal on this machine."""
