"""The directories `/registry` and `/skydb`."""
