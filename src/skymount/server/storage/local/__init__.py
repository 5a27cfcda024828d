"""What the store of one disk is made of."""
