"""Damaged copies of valid files, drawn from a seed, and readers with bounded memory and time."""

from __future__ import annotations

import multiprocessing
import re
import resource
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tracking.errors import UsageError

# Sizes, counts and offsets that end, wrap around or change their sign.
BITS = (7, 8, 15, 16, 31, 32, 62, 63)
INTEGERS = [0, 1, -1, 10**9, *(2**bits - 1 for bits in BITS), *(2**bits for bits in BITS)]
# NUL, an escape sequence, bytes that are not UTF-8, a lone surrogate, a long number, deep nesting.
PIECES = [b"\0", b"\x1b[2J", b"\xff\xfe", b"\xed\xa0\x80", b'"\\ud800"', b"\r\n", b"NaN", b"-1"]
PIECES += [b"9" * 400, b"[" * 2_000, b'{"a":' * 500]
KINDS = 9
# A case takes milliseconds. Other work on the machine may stop it for some seconds.
MAX_SECONDS = 20


def mutations(data: bytes, rng: np.random.Generator, count: int) -> Iterator[bytes]:
    """Yield copies with one to four changes each; the same copies for the same seed."""
    for _ in range(count):
        changed = bytearray(data)
        for kind in rng.integers(KINDS, size=int(rng.integers(1, 5))):
            _change(changed, int(kind), rng)
        yield bytes(changed)


def _change(data: bytearray, kind: int, rng: np.random.Generator) -> None:
    """Change some bytes at a place, often in the header: there are sizes."""
    end = len(data) if kind != 7 or rng.random() < 0.5 else min(len(data), 256)
    first = int(rng.integers(end + 1))
    last = first + int(rng.integers(1, 65))
    number = INTEGERS[rng.integers(len(INTEGERS))]
    match kind:
        case 0:
            flipped = 1 << int(rng.integers(8))
            data[first : first + 1] = bytes(byte ^ flipped for byte in data[first : first + 1])
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
            width = int(2 ** rng.integers(4))
            order = "big" if rng.integers(2) else "little"
            data[first : first + width] = (number % 256**width).to_bytes(width, order)  # type: ignore[arg-type]
        case 8:
            if numbers := list(re.finditer(rb"\d+", bytes(data[:65_536]))):
                digits = numbers[rng.integers(len(numbers))]
                data[digits.start() : digits.end()] = str(number).encode()


# ---- readers


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
        """Damage the first bytes only, which give the format of the rest."""
        content = path.read_bytes()
        return cls(path, content[:size_bytes], lambda head: head + content[size_bytes:])


@dataclass(frozen=True)
class Format:
    """Format of files, and the bounds of its reader.

    Attributes:
        write: Writes a valid data set into a folder.
        read: Reads the data set of a folder whose file was damaged.
        grown_bytes: Memory of all cases beyond the interpreter and its libraries.
        data_bytes: Largest amount that the process can allocate.
        is_refused: Whether some damage is to be refused; otherwise it may all be read.
    """

    write: Callable[[Path], list[Target]]
    read: Callable[[Path, Path], object]
    grown_bytes: int = 256 << 20
    data_bytes: int = 1 << 30
    refusals: tuple[type[Exception], ...] = (UsageError,)
    is_refused: bool = True


@dataclass
class Outcome:
    """Number of cases that were read and refused, and the faults: everything else."""

    accepted: int = 0
    refused: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    slowest_seconds: float = 0.0
    grown_bytes: int = 0


def check(form: Format, count: int, seed: int) -> None:
    """Read about `count` damaged copies in a separate process, and judge the outcome."""
    forks = multiprocessing.get_context("forkserver")
    tests = Path(__file__).parent.glob("test_*.py")
    forks.set_forkserver_preload([f"{__package__}.{path.stem}" for path in tests])
    limits = (form.data_bytes,)
    with ProcessPoolExecutor(1, mp_context=forks, initializer=_limit, initargs=limits) as pool:
        outcome = pool.submit(_fuzz, form, count, seed).result()
    print(outcome)
    assert not outcome.faults, outcome.faults.most_common(5)
    assert outcome.accepted + outcome.refused >= count
    assert outcome.refused > 0 or not form.is_refused, outcome
    assert outcome.slowest_seconds < MAX_SECONDS, outcome
    assert outcome.grown_bytes < form.grown_bytes, outcome


def _fuzz(form: Format, count: int, seed: int) -> Outcome:
    rng, outcome = np.random.default_rng(seed), Outcome()
    with TemporaryDirectory() as name:
        folder = Path(name, "data")
        folder.mkdir()
        targets = form.write(folder)
        valid = Outcome()  # its imports and allocations are no case's
        for target in targets:
            _attempt(form, folder, target, target.content, valid)
        assert valid.accepted == len(targets), valid
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again at what is held now
        before = _status_bytes("VmHWM")
        for target in targets:
            for content in mutations(target.content, rng, -(-count // len(targets))):
                _attempt(form, folder, target, content, outcome)
        outcome.grown_bytes = _status_bytes("VmHWM") - before
    return outcome


def _attempt(form: Format, folder: Path, target: Target, content: bytes, outcome: Outcome) -> None:
    """Read a case. A refusal is a printable line that does not come from a lack of memory."""
    original, began = target.path.read_bytes(), time.perf_counter()
    target.path.write_bytes(target.pack(content))
    try:
        form.read(folder, target.path)
        outcome.accepted += 1
    except form.refusals as error:
        is_memory = isinstance(error.__cause__ or error.__context__, MemoryError)
        if is_memory or not str(error) or not str(error).isprintable():
            outcome.faults[repr(error)] += 1
        outcome.refused += 1
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome.faults[f"{error!r} at {where.filename}:{where.lineno}"] += 1
    finally:
        target.path.write_bytes(original)
    outcome.slowest_seconds = max(outcome.slowest_seconds, time.perf_counter() - began)


def _limit(data_bytes: int) -> None:
    limit = _status_bytes("VmData") + data_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _status_bytes(name: str) -> int:
    """Return a size of this program; getrusage would include the parent's at its start."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
