"""How a machine is set up that is measured on: what its kernel says of clocks, addresses and memory. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tracking import cpus

TURBO = {"sys/devices/system/cpu/intel_pstate/no_turbo": {"0": "on", "1": "off"}}
TURBO |= {"sys/devices/system/cpu/cpufreq/boost": {"0": "off", "1": "on"}}
ASLR = {"0": "off", "1": "partly", "2": "on"}


def look(root: Path = Path("/")) -> tuple[dict[str, str], dict[str, str]]:
    """What is set how, and what the kernel does not tell, with the reason. root: of the file system of `proc` and `sys`."""
    questions: dict[str, tuple[Callable[[Path], str], str]] = {
        "governor": (_governor, "the kernel shows no cpufreq"),
        "turbo": (_turbo, "the kernel shows neither intel_pstate nor a boost switch"),
        "aslr": (_aslr, "the kernel shows no randomize_va_space"),
        "swap": (_swap, "/proc/meminfo has no swap"),
        "memory_pressure": (_pressure, "the kernel keeps no /proc/pressure/memory"),
    }
    answers = {name: ask(root) for name, (ask, _) in questions.items()}
    missing = {name: why for name, (_, why) in questions.items() if not answers[name]}
    return {name: answer for name, answer in answers.items() if answer}, missing


def memory_pressure(root: Path = Path("/")) -> float | None:
    """Percent of the last ten seconds in which any process waited for memory; None where the kernel does not count."""
    for line in cpus.text(root / "proc/pressure/memory").splitlines():
        kind, *fields = line.split()
        if kind == "some":
            return next((float(one.removeprefix("avg10=")) for one in fields if one.startswith("avg10=")), None)
    return None


def _governor(root: Path) -> str:
    """Of all CPUs; several where they differ."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return ", ".join(sorted({cpus.text(path).strip() for path in files} - {""}))


def _turbo(root: Path) -> str:
    found = (told.get(cpus.text(root / path).strip(), "") for path, told in TURBO.items())
    return next(filter(None, found), "")


def _aslr(root: Path) -> str:
    return ASLR.get(cpus.text(root / "proc/sys/kernel/randomize_va_space").strip(), "")


def _swap(root: Path) -> str:
    lines = (line.split() for line in cpus.text(root / "proc/meminfo").splitlines())
    kib = {words[0]: int(words[1]) for words in lines if words[0] in ("SwapTotal:", "SwapFree:")}
    if len(kib) < 2:
        return ""
    used, total = (kib["SwapTotal:"] - kib["SwapFree:"]) / 1_024, kib["SwapTotal:"] / 1_024
    return f"{used:,.0f} of {total:,.0f} MiB used" if total else "none"


def _pressure(root: Path) -> str:
    percent = memory_pressure(root)
    return "" if percent is None else f"{percent:g} %"


__all__ = ["look", "memory_pressure"]
