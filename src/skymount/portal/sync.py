"""The documented place of the synchronous client, which is in ``portal.client.sync``."""

from skymount.portal.client.sync import SyncPortalClient

__all__ = ["SyncPortalClient"]
