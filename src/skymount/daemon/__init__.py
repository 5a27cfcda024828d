"""One mount's life: built, announced, served, ended; in front or as a daemon of its own."""
