"""A portal as one tar archive, and back."""
