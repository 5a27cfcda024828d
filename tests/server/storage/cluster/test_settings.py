"""The file of the object store's credentials."""

import os
from pathlib import Path

import pytest

from skymount.errors import StorageError
from skymount.server.storage.cluster.settings import CredentialsFile

NAMED = "AWS_SHARED_CREDENTIALS_FILE"


def content(secret: str, profile: str = "default", more: str = "") -> str:
    return f"[{profile}]\naws_access_key_id = key\naws_secret_access_key = {secret}\n{more}"


def test_a_file_that_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SP8: it is read again; what it had is used while it cannot be."""
    path = tmp_path / "credentials"
    path.write_text(content("one"))
    file = CredentialsFile.find({NAMED: str(path)})
    assert file is not None
    assert file.current() == ("key", "one", "")
    path.write_text("[default]\naws_access_key_id = key")
    for _ in range(2):
        assert file.current() == ("key", "one", "")
    assert len(caplog.messages) == 1
    path.write_text(content("two", more="aws_session_token = token"))
    assert file.current() == ("key", "two", "token")


def test_which_file_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert CredentialsFile.find({}) is None
    (tmp_path / ".aws").mkdir()
    path = tmp_path / ".aws" / "credentials"
    path.write_text(content("mine", "work"))
    assert CredentialsFile.find({}) is None
    found = CredentialsFile.find({"AWS_PROFILE": "work"})
    assert found is not None
    assert found.current() == ("key", "mine", "")
    assert CredentialsFile.find({"AWS_ACCESS_KEY_ID": "x", "AWS_PROFILE": "work"}) is None
    with pytest.raises(StorageError, match="cannot use the credentials in"):
        CredentialsFile.find({NAMED: str(path)})


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no file then, as for a service of a user that is in no list."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert CredentialsFile.find({}) is None
