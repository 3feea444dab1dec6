"""Tag that tags for programs share: the UI shows the others, and none is lost."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tracking import technical
from tracking.records import Record, RunClosed, RunOpened, Tags
from tracking.store import Store
from tracking.technical import pack_tags, unpack_tags

SHOWN = ["block", "campaign", "commit", "cpu", "dataset", "framework", "gpu", "kind", "machine"]
SHOWN += ["model", "order_in_block", "outcome", "parity", "settings_hash", "team", "treatment"]
HIDDEN = ["cell", "environment", "host", "pid", "pid_started", "looks", "turns"]
HIDDEN += ["cool_down", "energy_of", "optimizer.implementation", "keras.use_cudnn", "warmup.train"]
HIDDEN += ["version.torch", "version.keras", "machine.governor", "pinned.cell"]
HIDDEN += ["train.compilations", "not_available.energy/joules"]
TAGS = {name: f'{name} · "quoted" (§)' for name in (*SHOWN, *HIDDEN)} | {"outcome": "ok"}


def test_shown_tags_are_for_people_and_no_tag_is_lost(store: Store, tmp_path: Path) -> None:
    """Log tags at the beginning of a run, later, and at its end."""
    later = dict(list(TAGS.items())[::3])
    first = {name: text for name, text in TAGS.items() if name not in later}
    records: list[Record] = [RunOpened("r1", 1_000, "captioning", "cell", first)]
    records += [Tags("r1", {name: text}) for name, text in later.items()]
    assert store.apply([*records, RunClosed("r1", 9_000, "ok")], tmp_path) == []
    run_id = store.run_id("r1") or ""
    names = store._client.get_run(run_id).data.tags
    assert {name for name in names if not name.startswith("mlflow.")} == set(SHOWN)
    (run,) = store.runs("captioning")
    assert run == store.run(run_id)
    tags = {name: text for name, text in run.tags.items() if not name.startswith("mlflow.")}
    assert tags == {**TAGS, "origin": "r1"}
    condition = """tags.`mlflow.evenhand` LIKE '%"version.torch":"version.torch%'"""
    assert [run.run_id for run in store.runs("captioning", condition)] == [run_id]


def test_values_of_any_length_and_text_are_read_back() -> None:
    """Write quotes and characters beyond ASCII, up to more than a tag holds, several times."""
    rng = random.Random(5)
    names = ["cell", "cool_down", "looks", "turns", "team"]
    names += [f"version.p{number}" for number in range(40)]
    for _ in range(200):
        stored: dict[str, str] = {}
        expected: dict[str, str] = {}
        for _ in range(rng.randint(1, 4)):
            lengths = {name: rng.choice((0, 3, 300, 2_600, 4_990, 5_200)) for name in names[:12]}
            rng.shuffle(names)
            values = {n: "".join(rng.choices('ab"\\{}×·\n', k=k)) for n, k in lengths.items()}
            stored |= pack_tags(values, stored)
            expected |= values
            assert unpack_tags(stored) == expected
        shared = [text for name, text in stored.items() if name.startswith("mlflow.evenhand")]
        assert max(map(len, shared)) <= technical.CHARACTERS < 8_000
        assert all(isinstance(json.loads(text), dict) for text in shared)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"cell": 1}', "mine", "[" * 100_000])
def test_shared_tag_that_a_user_has_edited_is_left_unchanged(text: str) -> None:
    tags = {"kind": "cell", "mlflow.evenhand": text}
    assert unpack_tags(tags) == tags
    tags = {"mlflow.evenhand.x": "mine", "mlflow.evenhand": '{"cell":"a"}'}
    assert unpack_tags(tags) == {"mlflow.evenhand.x": "mine", "cell": "a"}
