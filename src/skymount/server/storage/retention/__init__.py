"""What leaves a portal, what must stay, and whether it is whole."""
