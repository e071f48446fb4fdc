"""Settings come from the first place that names them, and a place that cannot be used is told."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from easyscale.errors import AddressError, UserError
from easyscale.settings import file_address, resolve


def path_of(address: str) -> str:
    return unquote(urlsplit(address).path)  # as open_kv and open_store do


def test_the_default_is_below_the_current_folder_and_creates_nothing(tmp_path: Path) -> None:
    found = resolve(environ={}, here=tmp_path)
    assert found.folder == tmp_path / ".easyscale"
    assert path_of(found.kv) == f"{tmp_path}/.easyscale/kv.sqlite"
    assert path_of(found.store) == f"{tmp_path}/.easyscale/store"
    assert list(tmp_path.iterdir()) == []


def test_an_option_counts_more_than_the_environment_than_the_project_than_the_user(tmp_path: Path) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    (home / ".config/easyscale").mkdir(parents=True)
    here.mkdir()
    (home / ".config/easyscale/config.toml").write_text('kv = "etcd://user"\nstore = "s3://user"\nfolder = "/user"')
    environ = {"HOME": str(home)}
    assert resolve(environ=environ, here=here).kv == "etcd://user"
    (here / "easyscale.toml").write_text('kv = "etcd://project"')
    assert resolve(environ=environ, here=here).kv == "etcd://project"
    environ["EASYSCALE_KV"] = "etcd://environment"
    assert resolve(environ=environ, here=here).kv == "etcd://environment"
    found = resolve("etcd://option", environ=environ, here=here)
    assert (found.kv, found.store, found.folder) == ("etcd://option", "s3://user", Path("/user"))


def test_the_users_file_is_where_xdg_says(tmp_path: Path) -> None:
    (tmp_path / "xdg/easyscale").mkdir(parents=True)
    (tmp_path / "xdg/easyscale/config.toml").write_text('kv = "etcd://xdg"')
    assert resolve(environ={"XDG_CONFIG_HOME": str(tmp_path / "xdg")}, here=tmp_path).kv == "etcd://xdg"
    relative = {"XDG_CONFIG_HOME": "xdg", "HOME": str(tmp_path)}  # the standard says to ignore it
    assert resolve(environ=relative, here=tmp_path).kv.startswith("file:")


def test_an_empty_variable_is_none(tmp_path: Path) -> None:
    assert resolve(environ={"EASYSCALE_KV": "", "HOME": ""}, here=tmp_path).kv.startswith("file:")


def test_a_relative_folder_belongs_to_where_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "easyscale.toml").write_text('folder = "state"')
    assert resolve(environ={}, here=tmp_path).folder == tmp_path / "state"
    assert resolve(folder="other", environ={}, here=tmp_path).folder == tmp_path / "other"
    assert path_of(resolve(folder="other", environ={}, here=tmp_path).store) == f"{tmp_path}/other/store"


@pytest.mark.parametrize("name", ["with space", "häßlich", "100%", "a#b?c;d", "%20", "新"])
def test_any_folder_name_survives_in_an_address(tmp_path: Path, name: str) -> None:
    assert path_of(resolve(environ={}, here=tmp_path / name).kv) == f"{tmp_path}/{name}/.easyscale/kv.sqlite"


def test_a_folder_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(AddressError, match="UTF-8"):
        file_address(Path(os.fsdecode(b"/tmp/\xff")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"kv = ", "not valid TOML"),
        (b'kv = "\xff"', "not valid TOML"),
        (b'kvs = "etcd://x"', r"unknown key 'kvs'\n.*kv, store, folder"),
        (b"kv = 5", "kv is 5"),
        (b'kv = ""', "kv is ''"),
        (b'[kv]\naddress = "x"', "kv is {"),
        (b'store = "file://relative/path"', "no absolute path"),
    ],
)
def test_a_settings_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "easyscale.toml").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        resolve(environ={}, here=tmp_path)
    assert str(tmp_path / "easyscale.toml") in caught.value.what


def test_a_settings_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "easyscale.toml").mkdir()
    with pytest.raises(UserError, match=r"easyscale\.toml cannot be read"):
        resolve(environ={}, here=tmp_path)


@pytest.mark.parametrize("address", ["file://relative/path", "file:relative", "file://"])
def test_a_file_address_needs_an_absolute_path(tmp_path: Path, address: str) -> None:
    with pytest.raises(AddressError, match=r"from EASYSCALE_STORE.*\n.*file:///"):
        resolve(environ={"EASYSCALE_STORE": address}, here=tmp_path)
    with pytest.raises(AddressError, match="from --kv"):
        resolve(address, environ={}, here=tmp_path)


def test_a_home_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such home"):
        resolve(folder="~nobody-has-this-name/x", environ={}, here=tmp_path)


def test_a_current_folder_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UserError, match="does not exist"):
        resolve(environ={})


def test_the_folder_is_made_when_asked_for_and_kept_from_version_control(tmp_path: Path) -> None:
    found = resolve(environ={}, here=tmp_path)
    assert found.make_folder() == found.folder == found.make_folder()
    assert (found.folder / ".gitignore").read_text() == "*\n"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/x cannot be used: Not a directory\n.*--folder"):
        resolve(folder="file/x", environ={}, here=tmp_path).make_folder()
