"""The libraries that people read data with, over a real portal.

They are imported where they are used, and in one worker: together they take a second and 200 MiB.
"""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from skymount.file_api.fsspec_filesystem import SkylinkFileSystem

pytestmark = pytest.mark.xdist_group("libraries")


@pytest.fixture
def fs(portal: str) -> SkylinkFileSystem:
    return fsspec.filesystem("skylink", portals=portal)


def test_pandas(fs: SkylinkFileSystem, portal: str, tmp_path: Path) -> None:
    """P9, P12: `read_csv` and `read_parquet` take a link, with the options as `storage_options`.

    The name at the end of what `put` returns says the compression.
    """
    import pandas as pd

    frame = pd.DataFrame({"n": range(10_000), "name": [f"row {n}" for n in range(10_000)]})
    frame.to_csv(tmp_path / "f.csv", index=False)
    frame.to_csv(tmp_path / "f.csv.gz", index=False)
    frame.to_parquet(tmp_path / "f.parquet")
    options = {"portals": portal}
    for name in ("f.csv", "f.csv.gz"):
        link = fs.put(tmp_path / name)
        read = pd.read_csv(link, storage_options=options)
        pd.testing.assert_frame_equal(read, frame)
    link = fs.put(tmp_path / "f.parquet")
    read = pd.read_parquet(link, storage_options=options, columns=["n"])
    pd.testing.assert_frame_equal(read, frame[["n"]])
    for to, name in ((frame.to_csv, "new.csv"), (frame.to_json, "d/x"), (frame.to_parquet, "p")):
        with pytest.raises(OSError, match="never changes") as caught:
            to(f"{link}/{name}", storage_options=options)
        assert caught.value.filename == f"{link}/{name}"


def test_what_the_client_returns(fs: SkylinkFileSystem, portal: str, tmp_path: Path) -> None:
    """C19, P2: what one part of the library returns every other part takes."""
    import pandas as pd

    import skymount
    from skymount.portal import Skylink, SyncPortalClient

    content = b"n\n1\n2\n"
    options = {"portals": portal}
    with SyncPortalClient(portal) as client:
        result = client.upload_file(content, custom_filename="a b.csv")
        (tmp_path / "c d%20.csv").write_bytes(content)
        put = fs.put(tmp_path / "c d%20.csv")
        assert isinstance(result.skylink, Skylink)
        assert isinstance(result.skylink, str)
        links = (
            *(result.skylink, str(result), client.get_metadata(result.skylink).skylink),
            *(result.skylink.base32, client.get_skylink_url(result.skylink), put),
        )
        for link in links:
            assert fs.cat(link) == content
            with skymount.open(link, **options) as file:
                assert file.read() == content
            assert skymount.Path(link, **options).read_bytes() == content
            assert client.get_file_content(link).data == content
        for link in (f"skylink://{result.skylink}", str(result)):
            assert list(pd.read_csv(link, storage_options=options)["n"]) == [1, 2]
        assert json.loads(json.dumps({"at": result.skylink})) == {"at": str(result.skylink)}


def test_pyarrow(fs: SkylinkFileSystem, tmp_path: Path) -> None:
    """P9: a dataset over a directory; only what is needed is read."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    for year in (2024, 2025):
        directory = tmp_path / "data" / f"year={year}"
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"n": range(year, year + 1000)}), directory / "part.parquet")
    root = fs.put(tmp_path / "data", recursive=True).removeprefix("skylink://")
    dataset = ds.dataset(root, filesystem=fs, format="parquet", partitioning="hive")
    assert dataset.count_rows() == 2000
    found = dataset.to_table(filter=(ds.field("year") == 2025) & (ds.field("n") < 2030))
    assert found["n"].to_pylist() == list(range(2025, 2030))
    assert pq.read_table(f"{root}/year=2024/part.parquet", filesystem=fs).num_rows == 1000


def test_zarr(fs: SkylinkFileSystem, portal: str, tmp_path: Path) -> None:
    """P9: an array in chunks, and groups."""
    import numpy as np
    import zarr

    values = np.arange(100 * 100).reshape(100, 100)
    group = zarr.open_group(str(tmp_path / "z"), mode="w")
    group.create_array("a", shape=values.shape, chunks=(30, 30), dtype=values.dtype)[:] = values
    link = fs.put(tmp_path / "z", recursive=True)
    read = zarr.open_group(link, mode="r", storage_options={"portals": portal})
    assert (read["a"][25:70, 10:95] == values[25:70, 10:95]).all()


def test_rsync(
    fs: SkylinkFileSystem,
    portal: str,
    tree: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P11: a whole skylink to another file system, by `rsync` of fsspec."""
    from fsspec.generic import rsync

    files = {"a.csv": b"1", "d/b c.txt": b"2", "d/e/f": b"3"}
    link = fs.put(tree(files), recursive=True)
    monkeypatch.setenv("SKYMOUNT_PORTALS", portal)
    rsync(link, f"file://{tmp_path}/copy")
    found = filter(Path.is_file, (tmp_path / "copy").rglob("*"))
    assert {str(path.relative_to(tmp_path / "copy")): path.read_bytes() for path in found} == files


def test_zip(fs: SkylinkFileSystem, portal: str, tmp_path: Path) -> None:
    """P9: a file of an archive that is in a skylink."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("inner/x.txt", "in a zip")
    link = fs.put(tmp_path / "a.zip")
    with fsspec.open(f"zip://inner/x.txt::{link}", "r", skylink={"portals": portal}) as file:
        assert file.read() == "in a zip"


def test_reference(fs: SkylinkFileSystem, portal: str, tree: Callable[..., Path]) -> None:
    """P9: `reference` file systems, which name ranges of files."""
    link = fs.put(tree({"data.bin": bytes(range(256)) * 100, "other": b"x"}), recursive=True)
    names = {"a": [f"{link}/data.bin", 10, 5], "b": [f"{link}/data.bin", 256, 3], "c": "inline"}
    options = {"fo": {"version": 1, "refs": names}, "remote_protocol": "skylink"}
    reference = fsspec.filesystem("reference", remote_options={"portals": portal}, **options)
    assert reference.cat("a") == bytes(range(10, 15))
    assert reference.cat(["a", "b"]) == {"a": bytes(range(10, 15)), "b": bytes(range(3))}
    assert reference.cat("c") == b"inline"


def test_json_lines(fs: SkylinkFileSystem, tmp_path: Path) -> None:
    """P9: files are what libraries take that know no fsspec."""
    (tmp_path / "f.json").write_text(json.dumps({"a": 1}))
    with fs.open(fs.put(tmp_path / "f.json")) as file:
        assert json.load(file) == {"a": 1}
