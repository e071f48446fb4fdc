"""Where a command finds its key-value store, its object store and its local folder.

Each is taken from the first place that names it: option, environment, `easyscale.toml` in the current folder, the
user's `config.toml`, and at last a default below the current folder. Nothing is created or opened here.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from .errors import AddressError, UserError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KEYS = ("kv", "store", "folder")
"""The settings. In the environment they are `EASYSCALE_KV` and so on; the options are `--kv` and so on."""

PROJECT_FILE = "easyscale.toml"
DEFAULT_FOLDER = ".easyscale"

IGNORE_ALL = "*\n"
"""The `.gitignore` of a local folder: neither git nor a code bundle takes what is in it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Addresses and places, resolved.

    Args:
        kv: address for `coordinator.kv.open_kv`.
        store: address for `storage.objects.open_store`.
        folder: absolute path of the local folder: caches, unpacked code, and by default both stores.
    """

    kv: str
    store: str
    folder: Path

    def make_folder(self) -> Path:
        """Create the local folder if need be, out of version control's sight.

        Raises:
            UserError: it cannot be made or written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not any(self.folder.iterdir()):  # else it may hold what is the user's
                (self.folder / ".gitignore").write_text(IGNORE_ALL)
        except OSError as error:
            raise UserError(
                f"folder {self.folder} cannot be used: {error.strerror}",
                "run in a folder that you can write, or name another with --folder or EASYSCALE_FOLDER",
            ) from error
        return self.folder


def resolve(
    kv: str | None = None,
    store: str | None = None,
    folder: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    here: Path | None = None,
) -> Settings:
    """Find the settings.

    Args:
        kv, store, folder: options as given; None or "" where not given.
        environ: the environment.
        here: the current folder.

    Raises:
        UserError: a settings file that cannot be used.
        AddressError: a `file:` address without an absolute path.
    """
    here = here or _current_folder()
    options = {"kv": kv, "store": store, "folder": folder}
    found: dict[str, tuple[str, str]] = {}  # key -> value, where it is from
    for path in reversed(list(_files(environ, here))):
        found |= {key: (value, str(path)) for key, value in _read(path).items()}
    for key in KEYS:
        if value := environ.get(f"EASYSCALE_{key.upper()}"):
            found[key] = value, f"EASYSCALE_{key.upper()}"
        if value := options[key]:
            found[key] = value, f"--{key}"
    place = here / _expanded(*found["folder"]) if "folder" in found else here / DEFAULT_FOLDER
    return Settings(
        kv=_checked(*found["kv"]) if "kv" in found else file_address(place / "kv.sqlite"),
        store=_checked(*found["store"]) if "store" in found else file_address(place / "store"),
        folder=place,
    )


def file_address(path: Path) -> str:
    """The `file:` address of an absolute path, quoted so that any character survives.

    Raises:
        AddressError: the path is not valid Unicode.
    """
    try:
        return f"file://{quote(str(path))}"
    except UnicodeEncodeError:
        raise AddressError(f"path {str(path)!r} is not valid UTF-8", "use a folder with another name") from None


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UserError("the current folder does not exist any more", "change to another folder") from None


def _files(environ: Mapping[str, str], here: Path) -> Iterator[Path]:
    """The settings files that exist, the one that counts more first."""
    candidates = [here / PROJECT_FILE]
    config, home = environ.get("XDG_CONFIG_HOME", ""), environ.get("HOME", "")
    if Path(config).is_absolute():  # the XDG standard says to ignore relative ones
        candidates.append(Path(config, "easyscale", "config.toml"))
    elif home:
        candidates.append(Path(home, ".config", "easyscale", "config.toml"))
    return (path for path in candidates if is_there(path))


def is_there(path: Path) -> bool:
    """Whether a file or folder exists, as far as we may know: one in somebody else's home does not, for us."""
    try:
        return path.exists()
    except (OSError, ValueError):  # no permission, a name that is too long, a NUL in it
        return False


def _read(path: Path) -> dict[str, str]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"settings file {path} cannot be read: {error.strerror}", "mend or remove it") from error
    except ValueError as error:  # of TOML, or of UTF-8
        raise UserError(f"settings file {path} is not valid TOML: {error}", "mend or remove it") from error
    for key, value in content.items():
        if key not in KEYS:
            raise UserError(f"settings file {path}: unknown key {key!r}", f"the keys are {', '.join(KEYS)}")
        if not isinstance(value, str) or not value:
            raise UserError(f"settings file {path}: {key} is {value!r:.120}", "it must be a text, in quotes")
    if "folder" in content:
        content["folder"] = str(path.parent / _expanded(content["folder"], str(path)))
    return content


def _expanded(folder: str, origin: str) -> Path:
    if "\0" in folder:
        raise UserError(f"folder {shown(folder)} (from {origin}) holds a NUL", "no path has one")
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        raise UserError(f"folder {folder!r} (from {origin}): there is no such home", "write it out") from None


def _checked(address: str, origin: str) -> str:
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise AddressError(
            f"address {shown(address)} (from {origin}) cannot be read: {error}",
            "write etcd://host:2379, s3://bucket/prefix or file:///path",
        ) from None
    path = unquote(parts.path)
    if parts.scheme == "file" and (parts.netloc or not path.startswith("/") or "\0" in path):
        raise AddressError(
            f"address {shown(address)} (from {origin}) has no absolute path",
            "write file:// and then a path that begins with a slash: file:///data/easyscale/store",
        )
    return address
