"""Searches on a running server: bounded in conditions, in time, and in number at once."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlencode

import psutil
import pytest

from deploy.guard import searches
from deploy.guard.refusal import Reason, Refusal
from tests.deploy.group import API, Group

RUNS, METRICS, DATA_SETS = 40, 30, 4


@pytest.fixture(scope="module")
def filled(group: Group) -> str:
    """Return an experiment of alice's whose runs have several data sets, which makes joins grow."""
    named = {"experiment_name": "vision/captioning"}
    answer = group.ask("alice", "GET", f"{API}/experiments/get-by-name", params=named).json()
    experiment = str(answer["experiment"]["experiment_id"])

    def post(action: str, **sent: object) -> Any:
        answer = group.ask("alice", "POST", f"{API}/{action}", json=sent)
        answer.raise_for_status()
        return answer.json()

    def make(number: int) -> None:
        run = post("runs/create", experiment_id=experiment)["run"]["info"]["run_id"]
        point = {"value": number, "timestamp": 1, "step": 0}
        points = [{"key": f"a{index}", **point} for index in range(METRICS)]
        post("runs/log-batch", run_id=run, metrics=points)
        dataset = {"digest": "x", "source_type": "a", "source": "b"}
        inputs = [{"dataset": {**dataset, "name": f"d{index}"}} for index in range(DATA_SETS)]
        post("runs/log-inputs", run_id=run, datasets=inputs)

    make(0)  # MLflow answers 400 where two runs name a new data set at the same moment
    with ThreadPoolExecutor(4) as crowd:
        list(crowd.map(make, range(1, RUNS)))
    return experiment


def metrics(count: int, between: str) -> str:
    return between.join(f"metrics.a{index} > -1" for index in range(count))


BETWEEN = ["\nand\n", "\tAND\t", " \r\nand ", "\v", " and/**/", "\n"]
TOO_LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"conditions joined by {it!a}": ("runs/search", {"filter": metrics(31, it)})
        for it in BETWEEN
    },
    "orderBy": ("runs/search", {"orderBy": [f"metrics.a{index}" for index in range(11)]}),
    "a long entry of orderBy": ("runs/search", {"orderBy": ["metrics." + "a" * 2_000]}),
    "experiments": ("experiments/search", {"filter": "\n".join(["name LIKE '%'"] * 31)}),
    "filter of models": ("logged-models/search", {"filter": metrics(31, "\nAND\n")}),
    "data sets of models": ("logged-models/search", {"datasets": [{"dataset_name": "d"}] * 31}),
    "orderBy of models": ("logged-models/search", {"orderBy": [{"fieldName": "metrics.a"}] * 11}),
}
SEARCH = "mlflowSearchRuns(input: {%s}) { runs { info { runId } } }"
LITERAL = json.dumps(metrics(31, "\nand\n"))
ORDERS = json.dumps([f"metrics.a{index}" for index in range(11)])
QUERIES: dict[str, dict[str, Any]] = {
    "a literal": {"query": "{ %s }" % (SEARCH % f"filter: {LITERAL}")},
    "a block": {"query": "{ %s }" % (SEARCH % f'filter: """{metrics(31, " and ")}"""')},
    "a list": {"query": "{ %s }" % (SEARCH % f"orderBy: {ORDERS}")},
    "a default": {"query": f"query($f: String = {LITERAL}) {{ {SEARCH % 'filter: $f'} }}"},
    "a variable of any name": {
        "query": f"query($f: String) {{ {SEARCH % 'filter: $f'} }}",
        "variables": {"f": metrics(31, "\t and\n")},
    },
    "a list of any name": {
        "query": f"query($o: [String!]) {{ {SEARCH % 'orderBy: $o'} }}",
        "variables": {"o": [f"metrics.a{index}" for index in range(11)]},
    },
    "one variable used twice": {
        "query": f"query($f: String) {{ a: {SEARCH % 'filter: $f'} b: {SEARCH % 'filter: $f'} }}",
        "variables": {"f": metrics(20, " and ")},
    },
    "aliases": {"query": "{" + " ".join(f"a{n}: __typename" for n in range(11)) + "}"},
    "a deep one": {"query": "{ " + "a { " * 12 + "b" + " }" * 12 + " }"},
    "a deep value": {"query": "{ a(b: " + "[" * 40 + "]" * 40 + ") }"},
    "many fields": {"query": "{ " + "test " * 600 + "}"},
    "no query": {"query": ["a"]},
    "a long one": {"query": "query { __typename } #" + "x" * 20_000},
}


@pytest.mark.parametrize(("path", "sent"), TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_large_search_is_refused(
    group: Group,
    filled: str,
    path: str,
    sent: dict[str, Any],
) -> None:
    ids = {} if path.startswith("experiments") else {"experiment_ids": [filled]}
    answer = group.ask("alice", "POST", f"{API}/{path}", json={**ids, **sent})
    assert answer.status_code == 400, answer.text
    assert answer.json()["reason"] == Reason.TOO_MANY


EQUAL_ORDERS = {
    "runs": (["metrics.a"] * 10, ["start_time", "attribute.Created DESC"], ["tags.a", "tag.`a`"]),
    "registered-models": (["timestamp", "last_updated_timestamp DESC"],),
    "model-versions": (["name"] * 2,),
}


@pytest.mark.parametrize(
    ("path", "orders"), [(path, orders) for path, each in EQUAL_ORDERS.items() for orders in each]
)
def test_equal_orders_are_refused(group: Group, path: str, orders: list[str]) -> None:
    """MLflow answers 500, after which its clients try again for minutes."""
    address = f"{API}/{path}/search"
    if path == "runs":
        sent = {"experiment_ids": ["0"], "order_by": orders}
        answer = group.ask("alice", "POST", address, json=sent)
    else:
        answer = group.ask("alice", "GET", address, params={"order_by": orders})
    assert (answer.status_code, answer.json()["reason"]) == (400, Reason.INVALID)


@pytest.mark.parametrize("sent", QUERIES.values(), ids=QUERIES.keys())
def test_large_query_is_refused(group: Group, sent: dict[str, Any]) -> None:
    assert group.ask("alice", "POST", "/graphql", json=sent).status_code in (400, 413)


@pytest.mark.parametrize("path", ["experiments", "registered-models", "model-versions"])
@pytest.mark.parametrize("name", ["filter", "order_by"])
def test_large_search_in_an_address_is_refused(group: Group, path: str, name: str) -> None:
    condition = "\n".join(["name LIKE '%'"] * 31)
    sent = [("max_results", "5")]
    sent += [(name, condition)] if name == "filter" else [(name, f"a{n}") for n in range(11)]
    answer = group.ask("alice", "GET", f"{API}/{path}/search?{urlencode(sent)}")
    assert answer.status_code == 400, answer.text


def test_searches_of_pages_and_clients_are_answered(group: Group, filled: str) -> None:
    words = " and ".join(f"tags.a{index} = 'this and that'" for index in range(30))
    ids = ",".join(f"'{index:032d}'" for index in range(100))
    for sent in (
        {"filter": metrics(30, " and "), "order_by": [f"metrics.a{n}" for n in range(10)]},
        {"filter": words},
        {"filter": f"run_id IN ({ids}) AND tags.a IS NULL"},
        {"filter": "", "order_by": ["start_time DESC"]},
    ):
        sent = {"experiment_ids": [filled], **sent}
        answer = group.ask("alice", "POST", f"{API}/runs/search", json=sent)
        assert answer.status_code == 200, answer.text
    with ThreadPoolExecutor(8) as crowd:  # as a page does; two run, the others wait
        path, sent = f"{API}/runs/search", {"experiment_ids": [filled]}
        at_once = [crowd.submit(group.ask, "bob", "POST", path, json=sent) for _ in range(8)]
        assert {search.result().status_code for search in at_once} == {200}
    search = SEARCH.replace("{%s}", "$data", 1)
    query = f"query SearchRuns($data: MlflowSearchRunsInput!) {{ {search} }}"
    data = {"experimentIds": [filled], "filter": metrics(5, " and "), "maxResults": 1_000}
    data["experimentIds"] += [str(number) for number in range(100, 300)]
    sent = {"query": query, "variables": {"data": data}}
    answer = group.ask("bob", "POST", "/graphql", json=sent)
    assert answer.status_code == 200
    assert len(answer.json()["data"]["mlflowSearchRuns"]["runs"]) == RUNS


def test_searches_of_an_account_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "WAIT_SECONDS", 0.1)

    async def statuses() -> list[int]:
        results, turns = [], searches.Turns()
        async with turns.turn(7):
            for account in (7, 8):
                try:
                    async with turns.turn(account):
                        results.append(200)
                except Refusal as refusal:
                    results.append(refusal.status if refusal.retry_seconds else 0)
        async with turns.turn(7):
            return results

    assert asyncio.run(statuses()) == [429, 200]


def hostile(experiment: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield four of each kind: the last is the dearest that the bounds let through."""
    runs = {"experiment_ids": [experiment], "max_results": 50_000}
    dear = {**runs, "filter": "\n".join(["dataset.name LIKE '%'"] * searches.MAX_CONDITIONS)}
    for _ in range(4):
        yield f"{API}/runs/search", {**runs, "filter": metrics(90, "\nand\n")}
        yield f"{API}/runs/search", {**runs, "orderBy": [f"metrics.a{n}" for n in range(90)]}
        yield "/graphql", QUERIES["a literal"]
        yield f"{API}/runs/search", dear


def test_hostile_searches_delay_no_other_account(group: Group, filled: str) -> None:
    main = psutil.Process(int((group.folder / "server.pid").read_text()))
    log = group.folder / "server.log"
    workers, before = set(main.children(recursive=True)), log.read_text()
    read = f"{API}/experiments/get?experiment_id={filled}"
    assert {group.ask("bob", "GET", read).status_code for _ in range(4)} == {200}
    # Two of the four dear ones at a time, 5 s each: 10 s of attack.
    with ThreadPoolExecutor(16) as crowd:
        ask = partial(crowd.submit, group.ask, "alice", "POST")
        attack = [ask(path, json=sent) for path, sent in hostile(filled)]
        waits = []
        while not all(search.done() for search in attack):
            begun = time.monotonic()
            assert group.ask("bob", "GET", read).status_code == 200
            waits.append(time.monotonic() - begun)
            time.sleep(0.05)
    assert {search.result().status_code for search in attack} <= {400, 429}
    assert len(waits) > 20
    assert statistics.median(waits) < 0.5
    assert max(waits) < 1
    assert set(main.children(recursive=True)) == workers, "no worker died"
    lines = log.read_text().removeprefix(before).splitlines()
    assert len(lines) - len(waits) - 4 <= 2 * len(attack), "one of each request and failure"
    assert 1 <= len([line for line in lines if "a search of alice failed" in line]) <= 4
    assert not [line for line in lines if "SELECT" in line or "Traceback" in line]
