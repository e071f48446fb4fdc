"""Writes docs/reference.md from docstrings and the command line: `make reference`. A test holds the page to them."""

from __future__ import annotations

import enum
import inspect
import re
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import easyscale
from easyscale.pipeline.cli import app
from easyscale.pipeline.spec import JobSpec
from easyscale.pipeline.summary import Summary
from typer.models import ArgumentInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).with_name("reference.md")

HEAD = """# Reference

Made from docstrings and the command line by `make reference`: change those, not this page. The words are explained in
[concepts.md](concepts.md), the commands in use in [operations.md](operations.md).
"""

SECTIONS = re.compile(r"^(Args|Returns|Raises|Yields):$")


def text() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_python(), *_commands()]).rstrip() + "\n"


def _python() -> Iterator[str]:
    yield "## Python\n"
    yield "```python\nimport easyscale as es\n```\n"
    for name in easyscale.__all__:
        if not name.startswith("_"):
            yield from _class(f"es.{name}", getattr(easyscale, name))
    yield "### Settings of a job\n"
    yield "What `es.Job(...)` takes besides `name`, `build` and `files`, and what `--set KEY=VALUE` changes.\n"
    given = set(easyscale.Job.__init__.__annotations__) | {"script", "code", "data", "samples", "python", "torch"}
    yield from _doc(JobSpec, without=given)
    yield "### Summary\n"
    yield "What `Handle.status()` and `Handle.watch()` give, and `show -o json`.\n"
    yield from _doc(Summary)


def _class(name: str, kind: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if not issubclass(kind, Exception):
        yield f"```python\n{name}{_signature(kind)}\n```\n"
    yield from _doc(kind)
    for method, value in vars(kind).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if method.startswith("_") or not inspect.isfunction(function):
            continue
        arguments = "" if isinstance(value, property) else _signature(function)
        yield f"#### {name.removeprefix('es.')}.{method}\n"
        yield f"```python\n{method}{arguments}\n```\n"
        yield from _doc(function)


def _signature(thing: Any) -> str:
    """Arguments and what comes of them, one to a line where they are many."""
    found = inspect.signature(thing)
    shown, keyword_only = [], False
    for one in found.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not keyword_only:
            shown.append("*")
        keyword_only = one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        stars = "**" if one.kind is one.VAR_KEYWORD else "*" if one.kind is one.VAR_POSITIONAL else ""
        default = "" if one.default is one.empty else f" = {_default(one.default)}"
        kind = one.annotation if isinstance(one.annotation, str) else inspect.formatannotation(one.annotation)
        shown.append(f"{stars}{one.name}: {kind}{default}")
    result = "" if inspect.isclass(thing) else f" -> {found.return_annotation}"
    line = f"({', '.join(shown)}){result}"
    return line if len(line) <= 90 else "(\n    " + ",\n    ".join(shown) + f",\n){result}"


def _default(value: Any) -> str:
    """A default; of one that is made anew each time only that there is one."""
    return "..." if "object at" in repr(value) or "factory" in repr(value) else repr(value)


def _doc(thing: Any, without: frozenset[str] | set[str] = frozenset()) -> Iterator[str]:
    """A docstring as Markdown: its sections become lists, an entry for each line that begins one."""
    lines = (inspect.getdoc(thing) or "").splitlines()
    body: list[str] = []
    entries: list[str] | None = None
    for line in lines:
        if section := SECTIONS.match(line):
            yield from _paragraphs(body)
            body = []
            yield from _entries(entries, _names(thing), without)
            entries = []
            yield f"*{section[1]}*\n"
        elif entries is None or (line and not line.startswith(" ")):
            body.append(line)
        elif line.startswith("        ") and entries:
            entries[-1] += " " + line.strip()
        elif line.strip():
            entries.append(line.strip())
    yield from _entries(entries, _names(thing), without)
    yield from _paragraphs(body)


def _names(thing: Any) -> set[str]:
    """What its docstring may have an entry for: a line may have several."""
    plain = inspect.isclass(thing) and issubclass(thing, Exception) and "__init__" not in vars(thing)
    return {*(() if plain else inspect.signature(thing).parameters), *getattr(thing, "__annotations__", ())}


def _paragraphs(lines: list[str]) -> Iterator[str]:
    joined = "\n".join(lines).strip()
    if joined:
        yield joined + "\n"


def _entries(entries: list[str] | None, names: set[str], without: frozenset[str] | set[str]) -> Iterator[str]:
    kept = []
    for line in entries or ():
        for entry in re.split(rf"(?<=[.;]) (?=(?:{'|'.join(sorted(names)) or '-'})(?:, \w+)*: )", line):
            before, colon, rest = entry.removesuffix(";").partition(": ")
            those = before.split(", ")
            named = bool(colon) and all(re.fullmatch(r"\w+", name) for name in those)
            if not (named and set(those) <= without):
                kept.append(f"- {', '.join(f'`{name}`' for name in those)}: {rest}" if named else f"- {entry}")
    if kept:
        yield "\n".join(kept) + "\n"


def _commands() -> Iterator[str]:
    """From what our functions declare: typer's own help has other words in each of its versions."""
    yield "## Commands\n"
    assert app.registered_callback is not None
    yield "`easyscale [OPTIONS] COMMAND`\n"
    yield from _parameters(app.registered_callback.callback)
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__
        if not command.hidden:
            yield f"### easyscale {name}\n"
            yield from _parameters(command.callback, name)


def _parameters(function: Any, name: str = "") -> Iterator[str]:
    """Usage, help and a table."""
    hints = get_type_hints(function, include_extras=True)
    rows, arguments = [], []
    for one in inspect.signature(function).parameters.values():
        declared = get_args(hints[one.name])
        if not declared or declared[1].hidden:  # the first: typer's own context
            continue
        kind, info = declared
        value = info.metavar or _kind(kind)
        if isinstance(info, ArgumentInfo):
            shown = value
            arguments.append(value)
        else:
            names = [*([info.default] if isinstance(info.default, str) else []), *(info.param_decls or [])]
            shown = f"{', '.join(names or ['--' + one.name.replace('_', '-')])} {value}".strip()
        usual = (
            ""
            if one.default in (one.empty, None, False)
            else f". Default: {getattr(one.default, 'value', one.default)}."
        )
        first, second = (cell.replace("|", "\\|") for cell in (shown, f"{info.help.removesuffix('.')}{usual or '.'}"))
        rows.append(f"| `{first}` | {second} |")
    if name:
        yield f"`easyscale {' '.join([name, *arguments])}`\n"
        yield inspect.cleandoc(function.__doc__ or "") + "\n"
    if rows:
        yield "\n".join(["| | |", "|---|---|", *rows]) + "\n"


def _kind(kind: Any) -> str:
    """What is to be given for a type, where the option does not say it."""
    (one,) = [each for each in get_args(kind) if each is not NoneType] if isinstance(kind, UnionType) else [kind]
    if isinstance(one, type) and issubclass(one, enum.Enum):
        return "|".join(choice.value for choice in one)
    return {bool: "", int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(one, "TEXT")


if __name__ == "__main__":
    PAGE.write_text(text())
