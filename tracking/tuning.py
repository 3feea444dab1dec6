"""Setup of the machine, as its kernel reports clocks, addresses and memory."""

from __future__ import annotations

from pathlib import Path

from tracking import cpus

TURBO = {"sys/devices/system/cpu/intel_pstate/no_turbo": {"0": "on", "1": "off"}}
TURBO |= {"sys/devices/system/cpu/cpufreq/boost": {"0": "off", "1": "on"}}
ASLR = {"0": "off", "1": "partly", "2": "on"}


def read_setup(root: Path = Path("/")) -> tuple[dict[str, str], dict[str, str]]:
    """Return the setup by name, and the reason for each part that the kernel does not report.

    Args:
        root: Of the file system that holds `proc` and `sys`.
    """

    def text(path: str) -> str:
        return cpus.text(root / path).strip()

    governors = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    turbo = (names.get(text(path), "") for path, names in TURBO.items())
    pressure = memory_pressure(root)
    answers = {
        "governor": ", ".join(sorted({cpus.text(path).strip() for path in governors} - {""})),
        "turbo": next(filter(None, turbo), ""),
        "aslr": ASLR.get(text("proc/sys/kernel/randomize_va_space"), ""),
        "swap": _swap(text("proc/meminfo")),
        "memory_pressure": "" if pressure is None else f"{pressure:g} %",
    }
    missing = {name: "the kernel does not report it" for name in answers if not answers[name]}
    return {name: answer for name, answer in answers.items() if answer}, missing


def memory_pressure(root: Path = Path("/")) -> float | None:
    """Return the percentage of the last 10 s in which a process waited for memory, or None."""
    for line in cpus.text(root / "proc/pressure/memory").splitlines():
        kind, *fields = line.split()
        if kind == "some":
            averages = dict(field.split("=", 1) for field in fields)
            return float(averages["avg10"]) if "avg10" in averages else None
    return None


def _swap(meminfo: str) -> str:
    lines = (line.split() for line in meminfo.splitlines())
    kib = {words[0]: int(words[1]) for words in lines if words[0] in ("SwapTotal:", "SwapFree:")}
    if len(kib) < 2:
        return ""
    used, total = (kib["SwapTotal:"] - kib["SwapFree:"]) / 1_024, kib["SwapTotal:"] / 1_024
    return f"{used:,.0f} of {total:,.0f} MiB used" if total else "none"
