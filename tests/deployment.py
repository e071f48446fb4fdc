"""What lies in `deploy/`, as those see it who run it: command lines, unit files, rendered manifests."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from services import missing

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
INSTALLED = "/opt/easyscale/bin/easyscale"
"""Where units look for the command."""

_COMMAND = re.compile(
    rf"^\s*(?:\$ )?(?:ExecStart=|exec )?(?:{INSTALLED}|easyscale) ([a-z].*?)(?: &| *#.*)?$", re.MULTILINE
)


def command_lines(path: Path) -> list[list[str]]:
    """The arguments of each `easyscale ...` line of a script, a unit or a page, as a shell splits them."""
    return [shlex.split(line) for line in _COMMAND.findall(path.read_text().replace("\\\n", " "))]


def unit(path: Path) -> dict[str, str]:
    """The settings of a unit file, all sections in one; of those that are there twice, the last one."""
    lines = [line for line in path.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def option(arguments: list[str], name: str) -> str:
    """The value of an option, written in either way."""
    for index, argument in enumerate(arguments):
        if argument == name:
            return arguments[index + 1]
        if argument.startswith(f"{name}="):
            return argument.removeprefix(f"{name}=")
    raise AssertionError(f"no {name} in {arguments}")


def rendered(folder: Path) -> list[dict[str, Any]]:
    """The objects that `kubectl apply -k` would send."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        missing("kubectl", "Debian, Ubuntu: apt-get install kubernetes-client")
    done = subprocess.run([str(kubectl), "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))
