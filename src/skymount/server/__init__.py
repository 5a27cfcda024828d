"""The embedded portal: an HTTP server for the contract, with its data on this disk."""
