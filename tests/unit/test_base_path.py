"""base_path: which version is served, and what is said when none can be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mpspool.supervisor.planning.base_path import BasePathError, NoVersionError, first_version, latest_version

# A SavedModel with a graph of no fields.
WHOLE = b"\x08\x01\x12\x00"


def export(base: Path, *versions: str, file: str = "saved_model.pb") -> Path:
    for version in versions:
        (base / version).mkdir(parents=True)
        (base / version / file).write_bytes(b"x")
    return base


def refused(base_path: Path) -> str:
    with pytest.raises(BasePathError) as caught:
        latest_version(base_path)
    return str(caught.value)


@pytest.mark.parametrize("file", ["saved_model.pb", "saved_model.pbtxt"])
def test_the_latest_by_number_is_served(tmp_path: Path, file: str) -> None:
    """10 is later than 9, in both forms of a SavedModel."""
    assert latest_version(export(tmp_path, "1", "9", "10", file=file)) == (10, tmp_path / "10")


def test_what_is_no_version_is_ignored(tmp_path: Path) -> None:
    """Other folders, signed numbers, foreign digits, too large numbers and plain files do not count."""
    export(tmp_path, "3", "tmp", "v4", "-5", "+6", "7.1", "8 ", "٩", str(2**63))
    (tmp_path / "99").write_text("a file")
    assert latest_version(tmp_path) == (3, tmp_path / "3")


def test_the_largest_version_there_can_be(tmp_path: Path) -> None:
    """Versions are int64, as in TensorFlow Serving."""
    assert latest_version(export(tmp_path, str(2**63 - 1), "5"))[0] == 2**63 - 1


def test_leading_zeros_do_not_count(tmp_path: Path) -> None:
    """Version 7 may be spelt "007", in its own folder; the plain spelling wins over it."""
    assert latest_version(export(tmp_path, "007", "05")) == (7, tmp_path / "007")
    assert latest_version(export(tmp_path, "7")) == (7, tmp_path / "7")


def test_version_zero_is_a_version(tmp_path: Path) -> None:
    """0 is served like any other."""
    assert latest_version(export(tmp_path, "0")) == (0, tmp_path / "0")


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children may run elsewhere, so the folder is told absolutely."""
    export(tmp_path / "half", "1")
    monkeypatch.chdir(tmp_path)
    assert latest_version(Path("half")) == (1, tmp_path / "half" / "1")


def test_a_version_may_be_a_link(tmp_path: Path) -> None:
    """Deployments that link a version folder in place are served."""
    store = export(tmp_path / "store", "build-17")
    base = tmp_path / "half"
    base.mkdir()
    (base / "17").symlink_to(store / "build-17")
    assert latest_version(base) == (17, base / "17")


def test_what_is_served_first_is_whole(tmp_path: Path) -> None:
    """Newer versions that are not may be on their way still; where none is whole, the latest is what is wrong."""
    export(tmp_path, "1", "3")
    (tmp_path / "2").mkdir()
    with pytest.raises(
        NoVersionError, match=r"3/saved_model.pb is cut short, or no SavedModel; the copy is incomplete"
    ):
        first_version(tmp_path)
    (tmp_path / "1" / "saved_model.pb").write_bytes(WHOLE)
    number, folder, wrong = first_version(tmp_path)
    assert (number, folder) == (1, tmp_path / "1")
    assert wrong.startswith(f"{tmp_path / '3' / 'saved_model.pb'} is cut short")
    with pytest.raises(NoVersionError, match="2 is not a SavedModel"):
        first_version(tmp_path, [2])
    (tmp_path / "3" / "saved_model.pb").write_bytes(WHOLE)
    assert first_version(tmp_path) == (3, tmp_path / "3", "")


def test_no_such_path_says_how_far_it_is_there(tmp_path: Path) -> None:
    """The part that is missing is named, and a folder that looks like it: most often it is a slip in the middle."""
    text = refused(tmp_path / "modles" / "half")
    where = f"no such path: {tmp_path / 'modles' / 'half'} ({tmp_path} is there, modles is not); "
    assert text == f"{where}name the folder that holds the model's version folders"
    (tmp_path / "models").mkdir()
    (tmp_path / "modle").write_text("a file is nothing to suggest")
    assert refused(tmp_path / "modles" / "half") == f"{where}did you mean models?"


def test_a_file_is_no_base_path(tmp_path: Path) -> None:
    """A file is told apart from a missing path."""
    (tmp_path / "half").write_text("")
    assert "half is not a folder" in refused(tmp_path / "half")


def test_a_remote_path_is_told_to_be_one() -> None:
    """Object stores are not read."""
    assert "not a local folder; copy or mount" in refused(Path("s3://bucket/half"))


def test_no_version_folder(tmp_path: Path) -> None:
    """An empty folder, and one with other folders only, say where the model belongs."""
    text = refused(export(tmp_path, "latest"))
    assert text.startswith(f"no version folder in {tmp_path};")
    assert str(tmp_path / "1") in text


def test_a_folder_of_models(tmp_path: Path) -> None:
    """The first of them that has a version is named; not what has numbers alone."""
    (tmp_path / "a_day" / "2026").mkdir(parents=True)
    (tmp_path / "a_file").touch()
    model = export(tmp_path / "half", "1")
    assert refused(tmp_path) == (
        f"no version folder in {tmp_path}, but in {model}: a base_path is one model's own; give that"
    )


def test_a_folder_beneath_that_nobody_may_look_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no model, and what is looked for goes on behind it; nor is it suggested for a name that is not there."""
    closed, real = export(tmp_path / "closed", "1"), os.stat
    model = export(tmp_path / "half", "1")

    def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", stat)
    assert f"but in {model}: " in refused(tmp_path)
    assert refused(closed / "2").startswith("no such path: ")


def test_a_saved_model_in_the_place_of_its_parent(tmp_path: Path) -> None:
    """The common slip of naming the SavedModel itself is recognised."""
    text = refused(export(tmp_path, "export") / "export")
    assert "is itself a SavedModel" in text
    assert str(tmp_path / "export" / "1") in text


def test_a_version_in_the_place_of_its_model(tmp_path: Path) -> None:
    """A SavedModel in a folder named by a number is one version: its parent is to be given."""
    base = export(tmp_path / "half", "1")
    assert (
        refused(base / "1")
        == f"{base / '1'} is one version of a model; give {base}, the folder that holds it"
    )


def test_a_version_that_is_no_saved_model(tmp_path: Path) -> None:
    """The latest is served or nothing is: an older one is no silent stand-in."""
    export(tmp_path, "1")
    (tmp_path / "2").mkdir()
    text = refused(tmp_path)
    assert text.startswith(f"{tmp_path / '2'} is not a SavedModel")
    assert "saved_model.pb nor saved_model.pbtxt" in text


def test_an_unreadable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing permission is told as such; the listing is made to fail, as root may read everything."""

    def denied(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", denied)
    assert refused(tmp_path) == f"{tmp_path} cannot be read: Permission denied"
