"""The guard: an application in front of MLflow's own, the same wherever the server runs.

A request is let through in this order: a route that there is, a right name and password, a route for this account, a body
of bounded size, and in it nothing that is named twice, lies elsewhere or belongs to another team.
What MLflow gets is not what was sent: it is what was read from it and authorised.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote

import anyio

from deploy import readiness
from deploy.guard import asked, bodies, deadline, inside, names, routes, searches
from deploy.guard.bodies import Bounded, Disconnected, Incoming
from deploy.guard.inside import Account
from deploy.guard.logins import Logins, header
from deploy.guard.refusal import Message, Receive, Refusal, Send
from deploy.guard.routes import Route, Routes
from deploy.guard.turns import Turns

Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LOGGER = logging.getLogger("uvicorn.evenhand")  # uvicorn's own writes into the server's log
LARGEST_UPLOAD = "EVENHAND_LARGEST_UPLOAD_BYTES"
READY_SECONDS = 2.0
# Answers to those who have not shown who they are: nothing of theirs is read.
STRANGERS = (401, 429, 503)
# What an account makes, and in which field of the request its name stands.
MADE = {
    "experiments/create": ("experiment", ""),
    "registered-models/create": ("registered_model", "name"),
    "registered-models/rename": ("registered_model", "new_name"),
}
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
# MLflow's own systems of rights and places, which this server does not use.
DROPPED = {b"x-mlflow-workspace", b"x-mlflow-authorization"}


def create() -> Application:
    """The ASGI application that a worker serves."""
    origins = os.environ["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"].split(",")
    deadline.install()
    return Guard(inside.application(), origins, int(os.environ.get(LARGEST_UPLOAD, 2 * 2**30)))


@dataclass(frozen=True)
class Request:
    """Request that may go on.

    Attributes:
        message: What MLflow's handler reads from the body.
        body: What is sent on.
        team: Whose the experiment or model is that it makes, empty where it makes none.
    """

    route: Route
    account: Account
    message: dict[str, Any]
    body: bytes
    team: str = ""


class Guard:
    """origins: of the server's own pages. largest_upload_bytes: of one artifact."""

    def __init__(
        self, behind: Application, origins: Iterable[str], largest_upload_bytes: int
    ) -> None:
        self._behind = behind
        self._origins = frozenset(origins)
        self._largest_upload_bytes = largest_upload_bytes
        self._routes = Routes(routes.classes())
        self._logins = Logins()
        self._turns = Turns.of_server()
        self._ready = Ready()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._behind(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            incoming = Incoming(receive)
            try:
                size = bodies.announced_bytes(scope["headers"])
                if scope["path"] == routes.READY and scope["method"] in ("GET", "HEAD"):
                    await self._ready.answer(scope, send)
                else:
                    await self._answer(scope, incoming, send, size)
            except Refusal as refusal:
                if refusal.status not in STRANGERS:
                    await incoming.discard()
                await refusal.answer(send)
            except Disconnected:
                pass

    async def _answer(self, scope: Scope, receive: Receive, send: Send, size: int | None) -> None:
        origin = header(scope["headers"], b"origin")
        if (
            origin and origin not in self._origins
        ):  # MLflow would let any page of the same machine in
            raise Refusal(403, "a page of another address has no business here")
        scope["headers"] = [pair for pair in scope["headers"] if not _is_dropped(pair[0])]
        route = self._routes.match(scope["method"], scope["path"])
        if route is None or route.kind != routes.OPEN:
            client = scope["client"][0] if scope.get("client") else ""
            account = await self._logins.account(header(scope["headers"], b"authorization"), client)
            route = _allowed(route, account)
            asked.check_path(route)
        reads = scope["method"] in ("GET", "HEAD")
        query, scope["query_string"] = asked.read_query(
            route, scope["query_string"], may_have_one=reads
        )
        if route.kind == routes.SEARCH:
            await self._search(route, account, query, scope, receive, send, size)
        elif reads:
            _without_body(size)
            whole = _of_model(route) or route.rule == "/get-artifact"
            await self._behind(
                await anyio.to_thread.run_sync(_streamed, route, scope) if whole else scope,
                receive,
                send,
            )
        elif route.kind == routes.UPLOAD:
            await self._upload(route, scope, receive, send, size)
        else:
            request = await self._request(route, account, scope, receive, size)
            answer = _handed_over(request, send) if request.team else send
            await self._behind(scope, bodies.again(request.body, receive), answer)

    async def _search(
        self,
        route: Route,
        account: Account,
        query: dict[str, Any],
        scope: Scope,
        receive: Receive,
        send: Send,
        size: int | None,
    ) -> None:
        """Answer a search in its account's turn. A failed one leaves one line in the log."""
        if scope["method"] in ("GET", "HEAD"):
            _without_body(size)
            await anyio.to_thread.run_sync(searches.check, route, query)
        else:
            request = await self._request(route, account, scope, receive, size)
            receive = bodies.again(request.body, receive)
        async with self._turns.turn(account.id):
            with deadline.limited() as search:

                async def unless_overdue(message: Message) -> None:
                    if not search.is_overdue:
                        await send(message)

                await self._behind(scope, receive, unless_overdue)
        if search.failure:
            failed = (route.rule, account.user, search.failure)
            LOGGER.warning("%s: a search of %s failed: %s", *failed)
        if search.is_overdue:
            message = "the search takes too long; ask for fewer conditions, experiments or results"
            raise Refusal(400, message)

    async def _request(
        self,
        route: Route,
        account: Account,
        scope: Scope,
        receive: Receive,
        size: int | None,
    ) -> Request:
        """Read and check a body; the headers then describe what is sent on of it."""
        body = await _body(route, receive, size)
        if body:
            asked.check_type(header(scope["headers"], b"content-type"))
        request = await anyio.to_thread.run_sync(_checked, route, account, body)
        scope["headers"] = bodies.described(scope["headers"], request.body)
        return request

    async def _upload(
        self,
        route: Route,
        scope: Scope,
        receive: Receive,
        send: Send,
        size: int | None,
    ) -> None:
        if size is not None and size > self._largest_upload_bytes:
            raise bodies.too_large(self._largest_upload_bytes)
        await anyio.to_thread.run_sync(inside.check_upload, route.named["artifact_path"])
        body = Bounded(receive, self._largest_upload_bytes)
        try:
            await self._behind(scope, body, body.answers(send))
        finally:
            if body.refusal:
                raise body.refusal


class Ready:
    """Readiness of the server: of database and artifacts, looked at once in two seconds at most.

    Why it is not ready goes to the server's log, and to who shows the server's own key.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._known = (0.0, "")
        key = readiness.operator_key(os.environ["MLFLOW_FLASK_SERVER_SECRET_KEY"])
        self._authorization = f"Bearer {key}"

    async def answer(self, scope: Scope, send: Send) -> None:
        async with self._lock:
            if time.monotonic() > self._known[0]:
                places = os.environ[inside.BACKEND], os.environ[inside.ARTIFACTS]
                problem = await anyio.to_thread.run_sync(readiness.problem, *places)
                if problem and problem != self._known[1]:
                    LOGGER.warning("not ready: %s", problem)
                self._known = (time.monotonic() + READY_SECONDS, problem)
            problem = self._known[1]
        values = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        is_operator = hmac.compare_digest(b"".join(values), self._authorization.encode())
        text = (problem if is_operator else "not ready") if problem else "ready"
        body = text.encode() + b"\n"
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
        ]
        status = 503 if problem else 200
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _allowed(route: Route | None, account: Account) -> Route:
    """Raises Refusal for what is not offered, or not to this account."""
    if route is None or route.kind == routes.REFUSED:
        raise Refusal(
            403, "this server does not offer that; it keeps experiments, runs, artifacts and models"
        )
    if route.kind == routes.ADMINISTER and not account.is_admin:
        raise Refusal(403, f"{account.user} is no administrator")
    return route


def _is_dropped(name: bytes) -> bool:
    """Return whether MLflow gets no such header. To WSGI an underscore is the same as a hyphen."""
    return name.lower() in DROPPED or b"_" in name


def _without_body(size: int | None) -> None:
    if size != 0:
        raise Refusal(400, "this request has no body")


async def _body(route: Route, receive: Receive, size: int | None) -> bytes:
    reads = route.kind in (routes.READ, routes.SEARCH)
    largest = bodies.LARGEST_SEARCH_BYTES if reads else bodies.LARGEST_JSON_BYTES
    if route.rule == searches.GRAPHQL:
        largest = bodies.LARGEST_QUERY_BYTES
    if size is not None and size > largest:
        raise bodies.too_large(largest)
    return await bodies.read(receive, largest)


def _of_model(route: Route) -> bool:
    return route.rule.endswith("/artifacts/files")


def _streamed(route: Route, scope: Scope) -> Scope:
    """Files are read by the one route that streams them: the others would hold a whole file for whoever reads it slowly."""
    query = dict(parse_qsl(scope["query_string"].decode()))
    try:
        run = query.get("run_id") or query.get("run_uuid", "")
        if _of_model(route):
            _, uri = inside.home_of_model(route.named["model_id"])
        else:
            _, uri = inside.home_of_run(run)
        place = inside.place(uri)
    except LookupError:
        raise Refusal(404, "there is no such run or model") from None
    wanted = query.get("path") or query.get("artifact_file_path", "")
    path = f"{place}/{wanted}"
    asked.check_path(Route(routes.READ, "", {"artifact_path": path}))
    return {
        **scope,
        "path": f"{ARTIFACTS}/{path}",
        "raw_path": f"{ARTIFACTS}/{quote(path)}".encode(),
        "query_string": b"",
    }


def _checked(route: Route, account: Account, raw: bytes) -> Request:
    """Raises Refusal for a body that names what is not the account's, or a thing in two ways."""
    message, body = asked.read_body(route, raw)
    if route.kind == routes.SEARCH:
        searches.check(route, message)
    team = _named(route, account, message)
    if route.kind == routes.WRITE and not account.is_admin:
        for kind, one in asked.ids(route, message):
            _owned(account, kind, one)
    return Request(route, account, message, body, "" if account.is_admin else team)


def _named(route: Route, account: Account, body: dict[str, Any]) -> str:
    """The team of what a request makes or renames, empty where it does neither. Raises Refusal for a name it may not give."""
    action = route.rule.partition("/mlflow/")[2]
    new_name = body.get("new_name")
    if action in ("roles/create", "roles/update") and "name" in body:
        names.check(body["name"], names.TEAM)
    elif action == "users/create":
        names.check(body.get("username"), names.USER)
    elif action == "experiments/create":
        return names.check_owned(body.get("name"), names.EXPERIMENT, _teams(account))
    elif action == "experiments/update":
        names.check_owned(new_name, names.EXPERIMENT, _teams(account))
    elif route.kind == routes.WRITE and action.startswith(
        ("registered-models/", "model-versions/")
    ):
        return _model_named(action, _teams(account), body, new_name)
    return ""


def _model_named(
    action: str, teams: frozenset[str] | None, body: dict[str, Any], new_name: object
) -> str:
    if teams is not None or action == "registered-models/create":
        team = names.check_owned(body.get("name"), names.MODEL, teams)
    if (
        action == "model-versions/create"
        and (copied := asked.check_source(body))
        and teams is not None
    ):
        names.check_owned(copied, names.MODEL, teams)
    if action == "registered-models/rename":
        return names.check_owned(new_name, names.MODEL, teams)
    return team if action == "registered-models/create" else ""


def _teams(account: Account) -> frozenset[str] | None:
    return None if account.is_admin else inside.teams(account)


def _owned(account: Account, kind: str, one: str) -> None:
    """Raises Refusal for what belongs to an experiment that the account may not write, and for what there is not."""
    try:
        homes = {asked.RUN: inside.home_of_run, asked.MODEL: inside.home_of_model}
        experiment = homes[kind](one)[0] if kind in homes else one
    except LookupError:
        raise Refusal(404, f"there is no {kind} {one}") from None
    if experiment == inside.DEFAULT_EXPERIMENT:
        own = next(iter(sorted(inside.teams(account))), "TEAM")
        raise Refusal(
            403,
            f"experiment Default is to be read; name your team's: MLFLOW_EXPERIMENT_NAME={own}/launches",
        )
    if not inside.may_write(account, experiment):
        raise Refusal(
            403,
            f"no permission: {kind} {one} is of an experiment that {account.user} may not write",
        )


def _handed_over(request: Request, send: Send) -> Send:
    """What was made is the team's before its maker hears of it."""
    what, field = MADE[request.route.rule.partition("/mlflow/")[2]]
    pieces = list[Message]()

    async def after(message: Message) -> None:
        pieces.append(message)
        if message["type"] != "http.response.body" or message.get("more_body", False):
            return
        if pieces[0]["status"] == 200:
            answer = json.loads(b"".join(piece.get("body", b"") for piece in pieces[1:]))
            pattern = str(request.message[field] if field else answer["experiment_id"])
            await anyio.to_thread.run_sync(
                inside.hand_over, request.account, what, pattern, request.team
            )
        for piece in pieces:
            await send(piece)

    return after
