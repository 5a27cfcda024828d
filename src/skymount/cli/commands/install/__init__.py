"""The commands that fit skymount into the machine."""
