"""Damaged copies of valid files, drawn from a seed, and what a reader makes of them inside bounds of memory and time."""

from __future__ import annotations

import multiprocessing
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from tracking.errors import UsageError

# Where sizes, counts and offsets end, wrap around or change their sign.
INTEGERS = (
    0,
    1,
    -1,
    127,
    128,
    255,
    256,
    32_767,
    65_535,
    65_536,
    10**9,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**62,
    2**63 - 1,
    2**63,
)
# What text readers trip over: NUL, an escape sequence, bytes that are not UTF-8, a lone surrogate, a long number, deep nesting.
PIECES = (
    b"\0",
    b"\x1b[2J",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b'"\\ud800"',
    b"\r\n",
    b"NaN",
    b"-1",
    b"9" * 400,
    b"[" * 2_000,
    b'{"a":' * 500,
)
WIDTHS, KINDS = (1, 2, 4, 8), 9
# A case takes milliseconds. Other work on the machine may stop it for some seconds.
MAX_SECONDS = 20

Case = TypeVar("Case")


def mutations(data: bytes, rng: np.random.Generator, count: int) -> Iterator[bytes]:
    """`count` copies of `data` with one to four changes each; the same copies for the same seed."""
    for _ in range(count):
        changed = bytearray(data)
        for kind in rng.integers(KINDS, size=int(rng.integers(1, 5))):
            _change(changed, int(kind), rng)
        yield bytes(changed)


def _change(data: bytearray, kind: int, rng: np.random.Generator) -> None:
    """Change some bytes at a place, which is often in the header: there are sizes."""
    end = len(data) if kind != 7 or rng.random() < 0.5 else min(len(data), 256)
    first = int(rng.integers(end + 1))
    last = first + int(rng.integers(1, 65))
    number = INTEGERS[rng.integers(len(INTEGERS))]
    match kind:
        case 0:
            data[first : first + 1] = bytes(
                old ^ 1 << int(rng.integers(8)) for old in data[first : first + 1]
            )
        case 1:
            data[first : first + 4] = rng.bytes(len(data[first : first + 4]))
        case 2:
            del data[first:]
        case 3:
            data[first:first] = rng.bytes(int(rng.integers(1, 17)))
        case 4:
            data[first:first] = PIECES[rng.integers(len(PIECES))]
        case 5:
            del data[first:last]
        case 6:
            data[first:first] = data[first:last] * int(rng.integers(1, 5))
        case 7:
            width, order = WIDTHS[rng.integers(len(WIDTHS))], ("big", "little")[rng.integers(2)]
            data[first : first + width] = (number % 256**width).to_bytes(width, order)  # type: ignore[arg-type]
        case 8:
            if result := list(re.finditer(rb"\d+", bytes(data[:65_536]))):
                digits = result[rng.integers(len(result))]
                data[digits.start() : digits.end()] = str(number).encode()


# ---- what a reader makes of them


@dataclass
class Outcome:
    """accepted, refused: how many cases were read and how many were one line. wrong: everything else, in words."""

    accepted: int = 0
    refused: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    slowest_seconds: float = 0.0
    peak_rss_bytes: int = 0
    grown_bytes: int = 0

    @property
    def cases(self) -> int:
        return self.accepted + self.refused + sum(self.wrong.values())


def outcome(
    read: Callable[[Case], object], cases: Iterable[Case], refusals: tuple[type[Exception], ...]
) -> Outcome:
    """Every case read once. A refusal is one printable line that does not come from memory that ran out."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again at what is held now
    result, before = Outcome(), _peak_rss_bytes()
    for case in cases:
        began = time.perf_counter()
        try:
            read(case)
            result.accepted += 1
        except refusals as error:
            if problem := _problem(error):
                result.wrong[problem] += 1
            else:
                result.refused += 1
        except Exception as error:
            result.wrong[f"{type(error).__name__}: {error} at {_where(error)}"] += 1
        result.slowest_seconds = max(result.slowest_seconds, time.perf_counter() - began)
    result.peak_rss_bytes = _peak_rss_bytes()
    result.grown_bytes = result.peak_rss_bytes - before
    return result


@dataclass(frozen=True)
class Target:
    """File of a valid data set, the bytes of it that are damaged, and how those become the file."""

    path: Path
    content: bytes
    pack: Callable[[bytes], bytes] = bytes

    @classmethod
    def whole(cls, path: Path) -> Target:
        return cls(path, path.read_bytes())

    @classmethod
    def head(cls, path: Path, size_bytes: int) -> Target:
        """Damage in the first bytes only, which say what the rest is."""
        content = path.read_bytes()
        return cls(path, content[:size_bytes], lambda head: head + content[size_bytes:])


@dataclass(frozen=True)
class Format:
    """A format of files, and the bounds of whatever reads it.

    Attributes:
        write: Writes a valid data set into a folder.
        read: Reads the data set of a folder whose file was damaged.
        grown_bytes: Memory of all cases beyond the interpreter and its libraries.
        data_bytes: What the process can allocate at most.
        is_refused: Whether some damage is to be refused; otherwise it may all be read.
    """

    write: Callable[[Path], list[Target]]
    read: Callable[[Path, Path], object]
    grown_bytes: int = 256 << 20
    data_bytes: int = 1 << 30
    refusals: tuple[type[Exception], ...] = (UsageError,)
    is_refused: bool = True


def check(form: Format, count: int, seed: int) -> None:
    """Read about `count` damaged copies in a process of their own, and judge what became of them."""
    forks = multiprocessing.get_context("forkserver")
    tests = Path(__file__).parent.glob("test_*.py")
    forks.set_forkserver_preload([f"{__package__}.{path.stem}" for path in tests])
    limits = (form.data_bytes,)
    with ProcessPoolExecutor(1, mp_context=forks, initializer=_limit, initargs=limits) as pool:
        result = pool.submit(_fuzz, form, count, seed).result()
    print(result)
    assert not result.wrong, result.wrong.most_common(5)
    assert result.cases >= count
    assert result.accepted > 0, result
    assert result.refused > 0 or not form.is_refused, result
    assert result.slowest_seconds < MAX_SECONDS, result
    assert result.grown_bytes < form.grown_bytes, result


def _fuzz(form: Format, count: int, seed: int) -> Outcome:
    rng = np.random.default_rng(seed)
    with TemporaryDirectory() as name:
        folder = Path(name, "data")
        folder.mkdir()
        targets = form.write(folder)

        def attempt(case: tuple[Target, bytes]) -> None:
            target, content = case
            whole = target.path.read_bytes()
            target.path.write_bytes(target.pack(content))
            try:
                form.read(folder, target.path)
            finally:
                target.path.write_bytes(whole)

        for target in targets:
            attempt((target, target.content))  # what reading it imports and allocates is no case's
        cases = (
            (target, content)
            for target in targets
            for content in mutations(target.content, rng, -(-count // len(targets)))
        )
        return outcome(attempt, cases, form.refusals)


def _limit(data_bytes: int) -> None:
    lines = Path("/proc/self/status").read_text().splitlines()
    inherited = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (inherited + data_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _problem(error: BaseException) -> str | None:
    message = str(error)
    if not message.isprintable() or not message:
        return f"no printable line: {message!r}"
    if isinstance(error.__cause__ or error.__context__, MemoryError):
        return f"memory ran out: {message}"
    return None


def _where(error: BaseException) -> str:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at else "?"


def _peak_rss_bytes() -> int:
    """Of this program alone; getrusage would include what the parent held when it started us."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
