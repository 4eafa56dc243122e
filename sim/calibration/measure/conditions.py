"""Clocks, power and temperature of the GPU, as its driver's own tool or library tells them."""

from __future__ import annotations

import os
import subprocess
from typing import Any

_ASKED = {
    "driver": "driver_version",
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "most_sm_mhz": "clocks.max.sm",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
    "temperature_c": "temperature.gpu",
}
_PATIENCE_S = 10


def nvidia_smi(gpu: int = 0) -> dict[str, Any]:
    """What `nvidia-smi` says of torch's GPU number *gpu*; failing that NVML; empty where neither is there."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_ASKED.values())}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            [*command, f"--id={_driver_id(gpu)}"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return _nvml(gpu)
    cells = [cell.strip() for cell in answer.strip().split(",")]
    read = {name: _value(cell) for name, cell in zip(_ASKED, cells, strict=False)}
    return {name: value for name, value in read.items() if value is not None}


def _driver_id(gpu: int) -> str:
    """The driver's name of torch's GPU *gpu*, which CUDA_VISIBLE_DEVICES may have renumbered."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[gpu] if gpu < len(visible) else str(gpu)


def _value(cell: str) -> float | str | None:
    if cell.startswith("[") or not cell:  # [N/A], [Not Supported]
        return None
    try:
        return float(cell)
    except ValueError:
        return cell


def _nvml(gpu: int) -> dict[str, Any]:
    try:
        import pynvml

        pynvml.nvmlInit()
        name = _driver_id(gpu)
        by_number = name.isdigit()
        handle = (
            pynvml.nvmlDeviceGetHandleByIndex(int(name))
            if by_number
            else pynvml.nvmlDeviceGetHandleByUUID(name)
        )
        return {
            "sm_mhz": float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            "memory_mhz": float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
            "power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "temperature_c": float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        }
    except Exception:  # not installed, no driver, not allowed: the conditions stay unknown
        return {}
