"""Registry entries: what is believed, what is signed, what is still to be posted."""
