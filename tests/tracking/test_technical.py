"""Tags that only programs read share one: none is lost on the way, and the first that a person sees are a person's."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tracking import technical
from tracking.records import Record, RunClosed, RunOpened, Tags
from tracking.store import Store
from tracking.technical import packed, unpacked

# Of a cell on a machine with a GPU, as campaigns log it.
FOR_PEOPLE = {
    **{
        "block": "1",
        "campaign": "c" * 32,
        "commit": "0" * 40,
        "cpu": "16 × a CPU",
        "dataset": "scenes",
        "framework": "toy",
    },
    **{
        "gpu": "a GPU",
        "kind": "cell",
        "machine": "abcd1234",
        "model": "lenet",
        "order_in_block": "0",
        "outcome": "ok",
    },
    **{
        "parity": "equal",
        "settings_hash": "h",
        "team": "vision",
        "treatment": "toy",
        "user": "dana",
        "weights": "drawn",
    },
}
FOR_PROGRAMS = {
    **{
        "cell": "block-1-toy",
        "environment": "e1",
        "host": "box",
        "pid": "12",
        "pid_started": "1.50",
        "idle": "CPU 1 %",
    },
    **{
        "looks": "6,8",
        "turns": "ab",
        "cool_down": "gpu 60 °C",
        "energy_of": "gpu",
        "optimizer.implementation": "fused",
    },
    **{"keras.use_cudnn": "False", "warmup.train": "steady"},
    **{f"version.{name}": "2.1" for name in ("torch", "keras", "numpy", "mlflow", "python")},
    **{"machine.governor": "performance", "pinned.cell": "1,2", "train.compilations": "1"},
    "not_available.energy/joules": 'no "counter" (RAPL needs root)',
}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path) -> Store:
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return Store(f"sqlite:///{tmp_path}/mlflow.db")


def shown(store: Store, run_id: str) -> list[str]:
    """The names on MLflow's page of a run, in its order; it leaves out its own."""
    return [
        name for name in store._client.get_run(run_id).data.tags if not name.startswith("mlflow.")
    ]


def written(store: Store, tags: Mapping[str, str], folder: Path) -> str:
    """A run as a campaign logs it: tags of the beginning, some that come later, its end."""
    later = dict(list(tags.items())[::3])
    first = {name: text for name, text in tags.items() if name not in later}
    records: list[Record] = [RunOpened("r1", 1_000, "captioning", "cell", first)]
    records += [Tags("r1", {name: text}) for name, text in later.items()]
    assert store.apply([*records, RunClosed("r1", 9_000, "ok")], folder) == []
    return store.run_id("r1") or ""


def test_the_first_tags_that_a_person_sees_are_for_people_and_no_tag_is_lost(
    store: Store, tmp_path: Path
) -> None:
    run_id = written(store, FOR_PEOPLE | FOR_PROGRAMS, tmp_path)
    assert set(shown(store, run_id)) == set(FOR_PEOPLE)
    found = store.run(run_id)
    assert found
    ours = {name: text for name, text in found.tags.items() if not name.startswith("mlflow.")}
    assert ours == {**FOR_PEOPLE, **FOR_PROGRAMS, "origin": "r1"}
    assert found == next(iter(store.runs("captioning")))
    inside = """tags.`mlflow.evenhand` LIKE '%"version.torch":"2.1%'"""
    assert [run.run_id for run in store.runs("captioning", inside)] == [run_id]


def test_values_of_any_length_and_text_come_back_as_they_went() -> None:
    """Drawn: letters, quotes, characters beyond ASCII, in values from nothing to more than any tag holds; written in turns."""
    rng = random.Random(5)
    names = [
        "cell",
        "idle",
        "looks",
        "turns",
        "team",
        *(f"version.p{number}" for number in range(40)),
    ]
    for _ in range(200):
        there: dict[str, str] = {}
        wanted: dict[str, str] = {}
        for _ in range(rng.randint(1, 4)):
            some = {
                name: "".join(
                    rng.choices('ab"\\{}×·\n', k=rng.choice((0, 3, 300, 2_600, 4_990, 5_200)))
                )
                for name in rng.sample(names, 12)
            }
            there |= packed(some, there)
            wanted |= some
            assert unpacked(there) == wanted
        shared = [text for name, text in there.items() if name.startswith("mlflow.evenhand")]
        assert max(map(len, shared)) <= technical.CHARACTERS < 8_000
        assert all(isinstance(json.loads(text), dict) for text in shared)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"cell": 1}', "mine", "[" * 100_000])
def test_what_somebody_has_written_into_the_shared_tag_is_left_as_it_is(text: str) -> None:
    assert unpacked({"kind": "cell", "mlflow.evenhand": text}) == {
        "kind": "cell",
        "mlflow.evenhand": text,
    }
    beside = {"mlflow.evenhand.x": "mine", "mlflow.evenhand": '{"cell":"a"}'}
    assert unpacked(beside) == {"mlflow.evenhand.x": "mine", "cell": "a"}
