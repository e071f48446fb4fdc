"""The bundle holds the code, all of it and nothing else, in bytes that depend on nothing else."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path

import pytest
from easyscale import settings
from easyscale.errors import CorruptError, ScriptError
from easyscale.pipeline import bundle as bundle_module
from easyscale.pipeline.bundle import Bundle, difference, unpack
from hypothesis import given
from hypothesis import strategies as st


def write(folder: Path, **files: str) -> Path:
    """Files by name (`__` for `/`, `.py` added); returns the script `train.py`."""
    for name, text in {"train": "", **files}.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "train.py"


def archive(*members: tuple[str, bytes], mode: int = stat.S_IFREG | 0o644, compress: int = 0) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = compress
            made.writestr(info, content)
    return buffer.getvalue()


def test_it_holds_the_sources_below_the_script_and_what_the_globs_match(tmp_path: Path) -> None:
    script = write(tmp_path, models__net="", models__deep__er="")
    (tmp_path / "data.bin").write_bytes(b"x")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/a.toml").write_text("")
    bundle = Bundle.collect(script, ["configs/*"])
    assert bundle.names == {"train.py", "models/net.py", "models/deep/er.py", "configs/a.toml"}
    assert bundle.script == "train.py"


def test_it_leaves_out_what_tools_made(tmp_path: Path) -> None:
    script = write(tmp_path, __pycache____x="", node_modules__x="", build__x="", dist__x="", env__lib__x="", good__x="")
    (tmp_path / "env/pyvenv.cfg").write_text("")
    for hidden in (".git", ".venv", ".easyscale"):
        write(tmp_path / hidden)
    assert Bundle.collect(script).names == {"train.py", "good/x.py"}


def test_it_leaves_out_the_local_folder_of_runs_wherever_it_lies(tmp_path: Path) -> None:
    """Or the next run would find the copy of the code that the first one has unpacked, and call it a change."""
    script = write(tmp_path)
    first = Bundle.collect(script)
    for place in (tmp_path / "out", tmp_path):  # a folder of its own, or one that was there
        folder = settings.resolve(folder=str(place)).make_folder()
        unpack(first.data, folder / "code")
        (folder / "kv.sqlite").write_text("")
    assert Bundle.collect(script).data == first.data
    assert Bundle.collect(script, ["**/*.sqlite"]).names == {"train.py", "kv.sqlite"}
    assert not (tmp_path / ".gitignore").exists(), "git shall not lose sight of what is the user's"


def test_links_are_followed_inside_the_folder_only(tmp_path: Path) -> None:
    outside = write(tmp_path / "elsewhere", secret="password")
    script = write(tmp_path / "code", v2__net="x = 1")
    code = script.parent
    (code / "current").symlink_to("v2")
    (code / "v2/round").symlink_to("..")
    (code / "leaves.py").symlink_to(outside)
    (code / "leaves").symlink_to(outside.parent)
    (code / "broken.py").symlink_to("nowhere.py")
    assert Bundle.collect(script).names == {"train.py", "v2/net.py", "current/net.py"}


def test_a_linked_script_belongs_to_the_folder_it_lies_in_like_for_python(tmp_path: Path) -> None:
    script = write(tmp_path / "code", helper="")
    (tmp_path / "link.py").symlink_to(script)
    assert Bundle.collect(tmp_path / "link.py").names == {"train.py", "helper.py"}


def test_a_script_without_the_usual_ending_is_taken(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("")
    assert Bundle.collect(tmp_path / "train").names == {"train"}


def test_equal_files_give_equal_bytes_whatever_their_times_modes_and_place(tmp_path: Path) -> None:
    first = write(tmp_path / "one", b="b", a="ä")
    second = write(tmp_path / "another place", a="ä", b="b")
    second.chmod(0o755)
    os.utime(second, (1e9, 1e9))
    bundle = Bundle.collect(second)
    assert bundle.data == Bundle.collect(first).data
    # the same on every machine and Python version, or every job would seem to have changed
    assert bundle.digest == "8e9fe2a7a48212a4d00e67cd7469d7fc8be44fa75ca76e8797787b5da55c7cba"


def test_names_and_contents_reach_the_digest(tmp_path: Path) -> None:
    scripts = [write(tmp_path / str(i), **files) for i, files in enumerate(({"a": "1"}, {"a": "2"}, {"b": "1"}))]
    assert len({Bundle.collect(script).digest for script in scripts}) == 3


def test_too_many_files_are_refused_with_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "MAX_FILES", 10)
    script = write(tmp_path, **{f"many__m{i}": "" for i in range(11)})
    with pytest.raises(ScriptError, match=r"more than 10 files.* in many/(.|\n)*folder of its own") as caught:
        Bundle.collect(script)
    assert str(tmp_path) in caught.value.what


def test_too_much_code_is_refused_with_the_largest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "MAX_BYTES", 1000)
    script = write(tmp_path, small="#", large="#" * 1001)
    with pytest.raises(ScriptError, match=r"largest: large\.py"):
        Bundle.collect(script)


@pytest.mark.parametrize("pattern", ["missing/*.toml", "/etc/*", "../*", "", ".git/*", "empty"])
def test_a_glob_that_gives_nothing_from_the_folder_is_refused(tmp_path: Path, pattern: str) -> None:
    script = write(tmp_path / "code")
    (tmp_path / "outside.toml").write_text("")
    (tmp_path / "code/.git").mkdir()
    (tmp_path / "code/.git/config").write_text("")
    (tmp_path / "code/empty").mkdir()
    with pytest.raises(ScriptError, match="files"):
        Bundle.collect(script, [pattern])


def test_a_file_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    script = write(tmp_path)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.py")).write_text("")
    with pytest.raises(ScriptError, match="UTF-8"):
        Bundle.collect(script)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = write(tmp_path, secret="")
    real = Path.read_bytes

    def refuse(path: Path) -> bytes:  # root, as in CI, may read everything
        if path.name == "secret.py":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ScriptError, match=r"Permission denied: .*secret\.py"):
        Bundle.collect(script)


def test_a_pipe_named_like_a_module_does_not_hang(tmp_path: Path) -> None:
    script = write(tmp_path)
    os.mkfifo(tmp_path / "pipe.py")
    assert Bundle.collect(script).names == {"train.py"}


def test_unpacking_gives_the_files_back_and_is_not_repeated(tmp_path: Path) -> None:
    bundle = Bundle.collect(write(tmp_path / "code", models__näme="x = 1"))
    target = unpack(bundle.data, tmp_path / "cache")
    assert target.name == bundle.digest
    assert (target / "models/näme.py").read_text() == "x = 1"
    inode = (target / "train.py").stat().st_ino
    assert unpack(bundle.data, tmp_path / "cache") == target
    assert (target / "train.py").stat().st_ino == inode
    assert [*(tmp_path / "cache").iterdir()] == [target]


@pytest.mark.parametrize("damage", ["emptied", "removed"])
def test_a_damaged_folder_is_unpacked_again(tmp_path: Path, damage: str) -> None:
    bundle = Bundle.collect(write(tmp_path / "code", a="x = 1"))
    target = unpack(bundle.data, tmp_path / "cache")
    if damage == "emptied":
        (target / "a.py").write_bytes(b"")
    else:
        (target / "a.py").unlink()
    assert (unpack(bundle.data, tmp_path / "cache") / "a.py").read_text() == "x = 1"
    assert [*(tmp_path / "cache").iterdir()] == [target]


def test_an_unpacking_that_breaks_off_leaves_nothing_that_could_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.collect(write(tmp_path / "code", a="", b=""))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", lambda path, content: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            unpack(bundle.data, tmp_path / "cache")
    assert [*(tmp_path / "cache").iterdir()] == []


@pytest.mark.parametrize(
    "name", ["../evil.py", "/etc/evil.py", "a/../../evil.py", "a//b.py", "./a.py", "C:evil.py", "a\\..\\b.py", "a/"]
)
def test_members_that_could_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CorruptError, match="name"):
        unpack(archive((name, b"")), tmp_path / "deep/cache")
    assert [*tmp_path.rglob("*")] == []


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFDIR, 0])
def test_members_that_are_not_plain_files_are_refused(tmp_path: Path, kind: int) -> None:
    with pytest.raises(CorruptError, match="not a plain"):
        unpack(archive(("a.py", b"/etc/passwd"), mode=kind | 0o644), tmp_path)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an archive"),
        (b"PK\x05\x06" + b"\xff" * 18, "not an archive"),
        (archive(("a", b""), ("a/b", b"")), "both a file and a folder"),
        (archive(("a.py", bytes(100)), compress=zipfile.ZIP_DEFLATED), "plain stored"),
        (archive(("a.py", bytes(20_000_001))), "more than"),
    ],
)
def test_archives_that_are_not_ours_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(CorruptError, match=message):
        unpack(data, tmp_path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="twice"):
        unpack(archive(("a.py", b"1"), ("a.py", b"2")), tmp_path)


@given(st.data())
def test_damaged_archives_are_read_or_refused_but_nothing_else(data: st.DataObject) -> None:
    good = bytearray(archive(("a.py", b"x = 1"), ("b/c.py", b"")))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        contents = bundle_module._read(bytes(good[: data.draw(st.integers(0, len(good)))]))
    except CorruptError:
        return
    assert all(bundle_module._is_safe(name) for name in contents)


def test_the_difference_names_files_and_shows_the_beginning_of_the_change(tmp_path: Path) -> None:
    old = Bundle.collect(write(tmp_path / "old", train="lr = 0.1\n", gone="", same="")).data
    new = Bundle.collect(write(tmp_path / "new", train="lr = 0.2\n", fresh="", same="")).data
    lines = difference(old, new)
    assert lines[:3] == ["changed: train.py", "added: fresh.py", "removed: gone.py"]
    assert lines[-2:] == ["-lr = 0.1", "+lr = 0.2"]
    assert difference(old, old) == []


def test_a_long_difference_is_cut_short(tmp_path: Path) -> None:
    files = {f"f{i}": "".join(f"{i} {k}\n" for k in range(50)) for i in range(60)}
    old = Bundle.collect(write(tmp_path / "old", **dict.fromkeys(files, "")), []).data
    lines = difference(old, Bundle.collect(write(tmp_path / "new", **files)).data)
    assert len(lines) == 42
    assert "... and 40 more files" in lines
    assert lines[-1].startswith("... and ")


def test_the_difference_of_binary_files_is_their_name(tmp_path: Path) -> None:
    script = write(tmp_path)
    datas = []
    for content in (b"\xff\x00", b"\xff\x01"):
        (tmp_path / "table.bin").write_bytes(content)
        datas.append(Bundle.collect(script, ["*.bin"]).data)
    assert difference(*datas) == ["changed: table.bin"]
