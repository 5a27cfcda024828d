"""Work on untrusted input that runs in a process of its own."""
