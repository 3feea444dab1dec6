"""Damaged copies of valid files, and a process with bounded memory that reads them."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracking.errors import UsageError

# Sizes, counts and offsets that end, wrap around or change their sign.
BITS = (7, 8, 15, 16, 31, 32, 62, 63)
INTEGERS = [0, 10**9, *(2**bits - 1 for bits in BITS), *(2**bits for bits in BITS)]
# NUL, an escape sequence, bytes that are not UTF-8, a lone surrogate, a long number, deep nesting.
PIECES = [b"\0", b"\x1b[2J", b"\xff\xfe", b"\xed\xa0\x80", b'"\\ud800"', b"\r\n", b"NaN", b"-1"]
PIECES += [b"9" * 400, b"[" * 2_000, b'{"a":' * 500, *(b"%d" % number for number in INTEGERS)]
for bits in (8, 16, 32, 64):
    for order in ("little", "big"):
        PIECES += [(number % 2**bits).to_bytes(bits // 8, order) for number in INTEGERS]
HEAD_BYTES = 320
# A case takes milliseconds. Other work on the machine may stop it for some seconds.
LONGEST = timedelta(seconds=20)
Write = Callable[[Path], "list[Target]"]
Read = Callable[[Path, Path], object]


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw a copy with one to four changes, often in the header: there are sizes."""
    for _ in range(draw(st.integers(1, 4))):
        size = len(content)
        start = draw(st.integers(0, size) | st.integers(0, min(size, HEAD_BYTES)))
        end = start + draw(st.sampled_from([0, 1, 2, 4, 8]) | st.integers(0, size))
        copies = content[start : start + 64] * draw(st.sampled_from([0, 0, 0, 1, 2, 4]))
        piece = draw(st.binary(max_size=16) | st.sampled_from(PIECES))
        content = content[:start] + copies + piece + content[end:]
    return content


class Target(NamedTuple):
    """File of a valid data set, the bytes of it that are damaged, and how those become the file."""

    path: Path
    content: bytes
    pack: Callable[[bytes], bytes] = bytes


def whole(paths: Iterable[Path]) -> list[Target]:
    return [Target(path, path.read_bytes()) for path in paths]


def check(write: Write, read: Read, count: int, **bounds: Any) -> None:
    """Read about `count` damaged copies in a separate process, whose arguments are of `fuzz`."""
    forks = multiprocessing.get_context("forkserver")
    tests = Path(__file__).parent.glob("test_*.py")
    forks.set_forkserver_preload([f"{__package__}.{path.stem}" for path in tests])
    with ProcessPoolExecutor(1, mp_context=forks) as pool:
        pool.submit(fuzz, write, read, count, **bounds).result()


def fuzz(
    write: Write,
    read: Read,
    count: int,
    *,
    grown_bytes: int = 256 << 20,
    data_bytes: int = 1 << 30,
    is_refused: bool = True,
    has_memory: bool = True,
) -> None:
    """Assert that each damaged copy is read or refused, in bounded memory and time.

    Args:
        write: Writes a valid data set into a folder.
        read: Reads the data set of a folder whose file was damaged.
        count: Number of copies.
        grown_bytes: Memory of all cases beyond the interpreter and its libraries.
        data_bytes: Largest amount that the process can allocate.
        is_refused: Whether some damage is to be refused; otherwise it may all be read.
        has_memory: Whether no refusal comes from a lack of memory. For users, a separate process
            with limits reads.
    """
    limit = _status_bytes("VmData") + data_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with TemporaryDirectory() as name:
        folder = Path(name)
        targets = write(folder)
        for target in targets:
            read(folder, target.path)  # its imports and allocations are no case's
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again at what is held now
        before, each = _status_bytes("VmHWM"), -(-count // len(targets))
        cases = [case for it in targets for case in _refusals(it, partial(read, folder), each)]
        assert _status_bytes("VmHWM") - before < grown_bytes
    assert len(cases) >= count / 2, "hypothesis repeats no case"
    refusals = [case for case in cases if case]
    assert refusals or not is_refused
    assert all(text.isprintable() for text, _ in refusals)
    assert not has_memory or MemoryError not in {cause for _, cause in refusals}


def _refusals(
    target: Target, read: Callable[[Path], object], count: int
) -> list[tuple[str, type] | None]:
    """Return text and cause of the refusal of each of some damaged copies, None if it was read."""
    original, refusals = target.path.read_bytes(), list[tuple[str, type] | None]()
    options = settings(max_examples=count, deadline=LONGEST, database=None)

    @settings(options, suppress_health_check=HealthCheck)
    @given(damaged(target.content))
    def attempt(content: bytes) -> None:
        target.path.write_bytes(target.pack(content))
        try:
            read(target.path)
            refusals.append(None)
        except UsageError as error:
            refusals.append((str(error), type(error.__cause__ or error.__context__)))

    attempt()
    target.path.write_bytes(original)
    return refusals


def _status_bytes(name: str) -> int:
    """Return a size of this program; getrusage would include the parent's at its start."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
