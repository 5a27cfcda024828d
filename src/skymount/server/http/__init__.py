"""What every request and response of the portal goes through."""
