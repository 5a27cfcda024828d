"""The codec of the portal protocol: bytes and text in, frozen values out, and back. No IO."""
