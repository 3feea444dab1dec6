"""Floods of a running server: bodies, passwords, connections and searches are bounded."""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Any
from urllib.parse import urlencode

import pytest

from deploy.guard import searches
from deploy.guard.refusal import Reason, Refusal
from tests.conftest import wait_for
from tests.deploy.group import API, FILES, Group, Team, connected, send

ADDRESSES = count(10)
CURRENT = f"GET {API}/users/current"


def address() -> str:
    """Return an unused address: wrong passwords make others at the same address wait."""
    return f"127.0.{next(ADDRESSES)}.1"


def status(group: Group, user: str, password: str, source: str = "127.0.0.1") -> int:
    return send(group, CURRENT, words=(user, password), source=source)[0]


@contextmanager
def bounded_memory(group: Group, mebibytes: int) -> Iterator[None]:
    """Fail if the server's memory grows by more."""

    def resident_bytes() -> int:
        processes = (group.main, *group.main.children(recursive=True))
        return sum(process.memory_info().rss for process in processes)

    before = resident_bytes()
    yield
    assert resident_bytes() - before < mebibytes * 2**20


def test_slow_readers_of_a_large_file_cost_no_memory(group: Group, hers: Team) -> None:
    large = f"{hers.file.rpartition('/')[0]}/large.bin"
    group.ask("alice", "PUT", large, data=bytes(64 * 2**20)).raise_for_status()
    words = b64encode(f"bob:{group.password('bob')}".encode()).decode()
    lines = [
        f"GET /get-artifact?run_id={hers.run}&path=large.bin HTTP/1.1",
        f"Host: {group.uri[7:]}",
    ]
    head = "\r\n".join([*lines, f"Authorization: Basic {words}", "", ""]).encode()
    with bounded_memory(group, 32), ExitStack() as held:
        for _ in range(4):
            held.enter_context(connected(group)).sendall(head)
        time.sleep(3)


def test_body_is_not_read_before_the_password(group: Group) -> None:
    head = f"PUT {FILES}/0/x HTTP/1.1\r\nHost: {group.uri[7:]}\r\n"
    head += f"Content-Length: {500 * 2**20}\r\n"
    for words in ("", f"Authorization: Basic {b64encode(b'nobody:guess').decode()}\r\n"):
        with bounded_memory(group, 32), connected(group, address()) as connection:
            connection.sendall(f"{head}{words}\r\n".encode())
            sent = 0
            with suppress(OSError):
                while sent < 500:
                    connection.sendall(b"x" * 2**20)
                    sent += 1
            assert sent < 100, "the server went on taking it"


def test_bodies_are_bounded(group: Group) -> None:
    words, file = ("alice", group.password("alice")), f"{FILES}/1/{'0' * 32}/artifacts/y"
    body = b'{"run_id": "' + b"x" * 5 * 2**20 + b'"}'
    with bounded_memory(group, 64):
        assert send(group, f"POST {API}/runs/log-batch", body=body, words=words)[0] == 413
        assert send(group, f"PUT {file}", "Content-Length: 3221225472", words=words)[0] == 413


def test_many_wrong_passwords_at_once_are_counted(group: Group) -> None:
    source = address()
    with ThreadPoolExecutor(40) as crowd:
        guesses = list(crowd.map(lambda n: status(group, "alice", f"guess {n}", source), range(40)))
    assert guesses.count(401) <= 2 * 6, "five are free on each worker, and the one that waits"
    assert set(guesses) <= {401, 429, 503}


def test_right_password_on_many_connections_is_accepted(group: Group) -> None:
    """Log in as a machine's campaigns do, all with one account."""
    words, source = ("newcomer", "long enough for it"), address()
    group.post("admin", "users/create", username=words[0], password=words[1])
    with ThreadPoolExecutor(24) as crowd:
        assert set(crowd.map(lambda _: status(group, *words, source), range(24))) == {200}


@pytest.mark.parametrize(
    ("user", "password"),
    [("a\0b", "c"), ("a" * 300, "c"), ("alice", "\x1b"), ("", "c"), ("alice", "")],
    ids=ascii,
)
def test_malformed_names_and_passwords_are_refused(group: Group, user: str, password: str) -> None:
    assert status(group, user, password, address()) == 401


def test_flood_of_wrong_passwords_stops_no_user(group: Group) -> None:
    words = ("alice", group.password("alice"))
    assert {status(group, *words) for _ in range(4)} == {200}, "both workers know her"
    with ThreadPoolExecutor(16) as crowd:
        guesses = [(group, f"nobody{n}", "guess", address()) for n in range(32)]
        flood = [crowd.submit(status, *guess) for guess in guesses]
        waits = []
        while not all(item.done() for item in flood):
            begun = time.monotonic()
            assert status(group, *words) == 200
            waits.append(time.monotonic() - begun)
    assert {item.result() for item in flood} <= {401, 503}
    assert max(waits) < 5, "sixteen guesses at once stopped the server for fifteen seconds"


def test_unknown_names_take_as_long_as_wrong_passwords(group: Group) -> None:
    """Interleave both, so that a busy machine slows both; without the dummy hash it is 10."""
    taken: dict[str, list[float]] = {"bob": [], "nobody": []}
    for n in range(8):
        for user, times in taken.items():
            source, begun = address(), time.perf_counter()
            assert status(group, user, f"guess {n}", source) == 401
            times.append(time.perf_counter() - begun)
    assert 0.5 < statistics.median(taken["bob"]) / statistics.median(taken["nobody"]) < 2


def test_silent_connections_end(group: Group) -> None:
    def is_closed(item: socket.socket) -> bool:
        try:
            return item.recv(1) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    with ExitStack() as held:
        source = address()
        silent = [held.enter_context(connected(group, source)) for _ in range(300)]
        for item in silent[::2]:
            item.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert send(group, "GET /health")[0] == 200
        for item in silent:
            item.setblocking(False)
        wait_for(lambda: all(map(is_closed, silent)), 20)


# Searches: bounded in conditions, in time, and in number at once

RUNS, METRICS, DATA_SETS = 40, 30, 4


@pytest.fixture(scope="module")
def filled(group: Group) -> str:
    """Return an experiment of alice's whose runs have several data sets, which makes joins grow."""
    experiment = str(group.experiment("vision/captioning")["experiment_id"])

    def make(number: int) -> None:
        run = group.post("alice", "runs/create", experiment_id=experiment)["run"]["info"]["run_id"]
        point = {"value": number, "timestamp": 1, "step": 0}
        points = [{"key": f"a{index}", **point} for index in range(METRICS)]
        group.post("alice", "runs/log-batch", run_id=run, metrics=points)
        dataset = {"digest": "x", "source_type": "a", "source": "b"}
        inputs = [{"dataset": {**dataset, "name": f"d{index}"}} for index in range(DATA_SETS)]
        group.post("alice", "runs/log-inputs", run_id=run, datasets=inputs)

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
    "many fields": {"query": "{ " + "test " * 600 + "}"},
    "a list for its text": {"query": ["a"]},
    "a long text": {"query": "query { __typename } #" + "x" * 20_000},
}


COSTLY: dict[str, tuple[str, object]] = {
    "a table for every condition": (
        "runs/search",
        {"filter": " and ".join(f"metrics.a{n} > 1" for n in range(300))},
    ),
    "a long filter": ("runs/search", {"filter": "tags.a = '" + "x" * 5_000 + "'"}),
    "many orders": ("runs/search", {"order_by": [f"metrics.a{n}" for n in range(50)]}),
    "many ids": ("runs/set-tag", {"a": [{"run_id": str(n)} for n in range(3_000)]}),
    "many names": ("runs/set-tag", {f"a{n}": 0 for n in range(100_000)}),
    "a search of a megabyte": ("runs/search", {"experiment_ids": ["1" * 2**20]}),
    "a run that there is not": ("runs/set-tag", {"run_id": "0" * 32, "key": "a", "value": "b"}),
    "a NUL": ("runs/set-tag", {"run_id": "a\0b", "key": "a", "value": "b"}),
    **{f"a query with {name}": ("/graphql", query) for name, query in QUERIES.items()},
}


@pytest.mark.parametrize(("path", "sent"), COSTLY.values(), ids=COSTLY.keys())
def test_costly_requests_are_refused_early(group: Group, path: str, sent: object) -> None:
    begun = time.monotonic()
    assert group.ask("alice", "POST", path, json=sent).status_code in (400, 404, 413)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(("path", "sent"), TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_large_search_is_refused(group: Group, path: str, sent: dict[str, Any]) -> None:
    ids = {} if path.startswith("experiments") else {"experiment_ids": ["0"]}
    answer = group.ask("alice", "POST", path, json={**ids, **sent})
    assert (answer.status_code, answer.json()["reason"]) == (400, Reason.TOO_MANY)


@pytest.mark.parametrize(
    ("path", "orders"),
    [
        ("runs", ["metrics.a"] * 10),
        ("runs", ["start_time", "attribute.Created DESC"]),
        ("runs", ["tags.a", "tag.`a`"]),
        ("registered-models", ["timestamp", "last_updated_timestamp DESC"]),
        ("model-versions", ["name"] * 2),
    ],
)
def test_equal_orders_are_refused(group: Group, path: str, orders: list[str]) -> None:
    """MLflow answers 500, after which its clients try again for minutes."""
    sent = {"experiment_ids": ["0"], "order_by": orders}
    if path == "runs":
        answer = group.ask("alice", "POST", "runs/search", json=sent)
    else:
        answer = group.ask("alice", "GET", f"{path}/search", params={"order_by": orders})
    assert (answer.status_code, answer.json()["reason"]) == (400, Reason.INVALID)


@pytest.mark.parametrize(
    "query",
    [
        "{" + " ".join(f"a{n}: __typename" for n in range(11)) + "}",
        "{ " + "a { " * 12 + "b" + " }" * 12 + " }",
        "{ a(b: " + "[" * 40 + "]" * 40 + ") }",
    ],
    ids=["aliases", "a deep one", "a deep value"],
)
def test_query_beyond_mlflows_limits_reads_nothing(group: Group, query: str) -> None:
    answer = group.post("alice", "/graphql", query=query)
    assert answer["errors"]
    assert answer["data"] is None


@pytest.mark.parametrize("path", ["experiments", "registered-models", "model-versions"])
@pytest.mark.parametrize(
    "sent", [[("filter", "\n".join(["name LIKE '%'"] * 31))], [("order_by", "a")] * 11]
)
def test_large_search_in_an_address_is_refused(
    group: Group, path: str, sent: list[tuple[str, str]]
) -> None:
    address = f"{path}/search?{urlencode([('max_results', '5'), *sent])}"
    assert group.ask("alice", "GET", address).status_code == 400


def test_searches_of_pages_and_clients_are_answered(group: Group, filled: str) -> None:
    words = " and ".join(f"tags.a{index} = 'this and that'" for index in range(30))
    ids = ",".join(f"'{index:032d}'" for index in range(100))
    orders = [f"metrics.a{n}" for n in range(10)]
    for sent in (
        {"filter": metrics(30, " and "), "order_by": orders},
        {"filter": words},
        {"filter": f"run_id IN ({ids}) AND tags.a IS NULL"},
        {"filter": "", "order_by": ["start_time DESC"]},
    ):
        group.post("alice", "runs/search", experiment_ids=[filled], **sent)
    with ThreadPoolExecutor(8) as crowd:  # as a page does; two run, the others wait
        list(
            crowd.map(lambda _: group.post("bob", "runs/search", experiment_ids=[filled]), range(8))
        )
    search = SEARCH.replace("{%s}", "$data", 1)
    query = f"query SearchRuns($data: MlflowSearchRunsInput!) {{ {search} }}"
    experiments = [filled, *(str(number) for number in range(100, 300))]
    data = {"experimentIds": experiments, "filter": metrics(5, " and "), "maxResults": 1_000}
    answer = group.post("bob", "/graphql", query=query, variables={"data": data})
    assert len(answer["data"]["mlflowSearchRuns"]["runs"]) == RUNS


def test_searches_of_an_account_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "WAIT_SECONDS", 0.1)

    async def search() -> None:
        turns = searches.Turns()
        async with turns.turn(7):
            async with turns.turn(8):
                pass
            with pytest.raises(Refusal) as error:
                async with turns.turn(7):
                    pass
            assert (error.value.status, error.value.retry_seconds) == (429, searches.RETRY_SECONDS)
        async with turns.turn(7):
            pass

    asyncio.run(search())


def test_hostile_searches_delay_no_other_account(group: Group, filled: str) -> None:
    log, main = group.folder / "server.log", group.main
    workers, before = set(main.children(recursive=True)), log.read_text()
    read = f"experiments/get?experiment_id={filled}"
    runs = {"experiment_ids": [filled], "max_results": 50_000}
    condition = ["dataset.name LIKE '%'"] * searches.MAX_CONDITIONS
    hostile = [
        ("runs/search", {**runs, "filter": metrics(90, "\nand\n")}),
        ("runs/search", {**runs, "orderBy": [f"metrics.a{n}" for n in range(90)]}),
        ("/graphql", QUERIES["a literal"]),
        ("runs/search", {**runs, "filter": "\n".join(condition)}),  # the dearest within the bounds
    ]
    assert {group.ask("bob", "GET", read).status_code for _ in range(4)} == {200}
    # Two of the four dear ones at a time, 5 s each: 10 s of attack.
    with ThreadPoolExecutor(16) as crowd:
        attack = [
            crowd.submit(group.ask, "alice", "POST", path, json=sent) for path, sent in hostile * 4
        ]
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
