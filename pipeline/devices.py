"""A device by name, and what this machine can say of it without importing torch."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from uuid import UUID

from ..errors import UserError

PATTERN = re.compile(r"cpu|cuda(?::(\d+))?")


def check_device(device: str) -> str:
    """The device as torch names it (`cuda` is `cuda:0`).

    Raises:
        UserError: it is unknown, or not in this machine.
    """
    match = PATTERN.fullmatch(device)
    if match is None:
        raise UserError(f"device {device!r} is unknown", "use cpu, cuda or cuda:N")
    if device == "cpu":
        return device
    number, there = int(match[1] or 0), cuda_devices()
    if number >= there:
        have = f"it has {there}" if there else "no CUDA driver, or no device, was found"
        raise UserError(f"device {device!r} is not in this machine: {have}", "use another device (--device)")
    return f"cuda:{number}"


def check_devices(devices: str) -> list[str]:
    """Devices with commas between them, or `all` GPUs of this machine.

    Raises:
        UserError: one is unknown or not in this machine; a GPU is named twice.
    """
    names = [f"cuda:{number}" for number in range(cuda_devices())] if devices == "all" else devices.split(",")
    if not names:
        raise UserError(
            "device 'all' is all GPUs of this machine, and no CUDA driver, or no device, was found",
            "use another device (--device)",
        )
    found = [check_device(name.strip()) for name in names]
    twice = sorted({name for name in found if name != "cpu" and found.count(name) > 1})
    if twice:
        raise UserError(f"device {twice[0]!r} is named twice", "a worker has a GPU of its own (--device)")
    return found


def cuda_devices() -> int:
    """How many CUDA devices the driver shows; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def device_kind(device: str) -> str:
    """A device's kind: the model name of the processor or the GPU. Those of one kind are taken to be equally fast."""
    if device != "cpu":
        kind, _, number = device.partition(":")
        return _cuda_name(int(number or 0)) or kind
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "cpu"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "cpu")


def _cuda_name(number: int) -> str:
    """A GPU's model name as its driver says; empty if it does not."""
    handle, name = ctypes.c_int(0), ctypes.create_string_buffer(128)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), number)
        failed = failed or driver.cuDeviceGetName(name, len(name), handle)
    except (OSError, AttributeError):  # no driver, or one that knows no names
        return ""
    return "" if failed else name.value.decode(errors="replace").strip()


def cuda_uuid(device: str) -> str:
    """A GPU's UUID as NVML writes it (`GPU-...`).

    Raises:
        UserError: its driver does not say.
    """
    handle, uuid = ctypes.c_int(0), (ctypes.c_ubyte * 16)()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), int(device.partition(":")[2] or 0))
        failed = failed or driver.cuDeviceGetUuid(uuid, handle)
    except (OSError, AttributeError) as error:
        raise UserError(f"the CUDA driver does not name device {device}: {error}", "update the driver") from error
    if failed:
        raise UserError(f"the CUDA driver does not name device {device}: error {failed}", "look at nvidia-smi")
    return f"GPU-{UUID(bytes=bytes(uuid))}"


def memory_bytes(device: str) -> int:
    """A device's memory in bytes: of `cpu`, and of a GPU whose driver does not say, this machine's."""
    kind, _, number = device.partition(":")
    mine = _cuda_memory(int(number or 0)) if kind == "cuda" else 0
    return mine or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cuda_memory(number: int) -> int:
    """A GPU's memory as its driver says; 0 if it does not."""
    handle, size = ctypes.c_int(0), ctypes.c_size_t(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), number)
        failed = failed or driver.cuDeviceTotalMem_v2(ctypes.byref(size), handle)
    except (OSError, AttributeError):  # no driver, or one that does not know
        return 0
    return 0 if failed else size.value
