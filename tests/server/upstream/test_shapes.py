"""Content of every shape, through a portal with an upstream."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.portal import FakePortal, in_thread
from tests.fakes.skyfiles import (
    FakeSkyfile,
    encrypted,
    noise,
    of_files,
    packed,
    sealed,
    unverifiable,
)
from tests.portal_process import portal_process
from tests.server.http_client import Client, message_of

MIB = 1 << 20
