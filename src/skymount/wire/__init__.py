"""The codec of the portal protocol: bytes and text to frozen values, and back. No IO."""
