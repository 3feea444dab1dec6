"""Application in front of MLflow's own, the same wherever the server runs.

A request passes in this order: an existing route, a right name and password, a route for this
account, a body of bounded size, and in it no thing that is named twice, lies elsewhere or belongs
to another team. MLflow gets what was read from a request and authorised, never its own bytes.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, quote

import anyio
from cachetools import TTLCache, cached
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy import readiness
from deploy.guard import backend, bodies, content, names, routes, searches
from deploy.guard.backend import Account
from deploy.guard.bodies import Body
from deploy.guard.logins import (
    PROXY_SECRET_HEADER,
    PROXY_USER_HEADER,
    Logins,
    header,
    proxy_account,
)
from deploy.guard.refusal import Reason, Refusal
from deploy.guard.routes import Route, Routes
from deploy.guard.searches import Turns

LOGGER = logging.getLogger("uvicorn.evenhand")  # uvicorn's own writes into the server's log
LARGEST_UPLOAD = "EVENHAND_LARGEST_UPLOAD_BYTES"
READY_SECONDS = 2.0
# Refusals before a password was right: nothing more of such a request is read.
UNAUTHENTICATED = (Reason.NO_LOGIN, Reason.WAIT, Reason.BUSY)
ARTIFACTS = routes.ARTIFACTS.replace(routes.API, routes.PREFIXES[0])
# MLflow's own systems of rights and places, which this server does not use, and a proxy's log-in,
# which is read before.
DROPPED_HEADERS = {
    b"x-mlflow-workspace", b"x-mlflow-authorization", PROXY_SECRET_HEADER, PROXY_USER_HEADER,
}  # fmt: skip
# Account of open routes.
ANONYMOUS = Account(0, "", "", is_admin=False)


def create(proxy_secret: str) -> ASGIApp:
    """Return the ASGI application that a worker serves."""
    if main := multiprocessing.parent_process():  # a killed one leaves no worker behind
        threading.Thread(target=_end_with, args=(main,), daemon=True).start()
    searches.install()
    return Guard(
        backend.application(),
        origins=os.environ["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"].split(","),
        largest_upload_bytes=int(os.environ.get(LARGEST_UPLOAD, 2 * 2**30)),
        logins=Logins(proxy_secret),
    )


def _end_with(main: Any) -> None:
    main.join()
    os._exit(1)


class Guard:
    """ASGI application that checks requests before another one answers them.

    Args:
        application: MLflow's.
        origins: Addresses of the server's own pages.
        largest_upload_bytes: Size of the largest artifact.
        logins: Check of names and passwords.
    """

    def __init__(
        self,
        application: ASGIApp,
        origins: Iterable[str],
        largest_upload_bytes: int,
        logins: Logins,
    ) -> None:
        self._application = application
        self._origins = frozenset(origins)
        self._largest_upload_bytes = largest_upload_bytes
        self._routes = Routes(routes.classes())
        self._logins, self._turns = logins, Turns()
        self._probing = anyio.CapacityLimiter(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        body = Body(receive, self._largest_upload_bytes)
        try:
            size = bodies.announced_bytes(scope["headers"])
            if scope["path"] == routes.READY and scope["method"] in ("GET", "HEAD"):
                is_ready = await anyio.to_thread.run_sync(_is_ready, limiter=self._probing)
                text, status = ("ready\n", 200) if is_ready else ("not ready\n", 503)
                await PlainTextResponse(text, status)(scope, receive, send)
            else:
                route, account = await self._admit(scope)
                await self._answer(route, account, scope, body, size, send)
        except Refusal as refusal:
            if refusal.reason not in UNAUTHENTICATED:
                await body.discard()
            await refusal.response()(scope, receive, send)
        except ClientDisconnect:
            pass

    async def _admit(self, scope: Scope) -> tuple[Route, Account]:
        """Return route and account of a request after checking its headers and both."""
        origin = header(scope["headers"], b"origin")
        if origin and origin not in self._origins:  # MLflow admits any page of the same machine
            raise Refusal(Reason.DENIED, "pages of other addresses may not send requests")
        user_of_proxy = self._logins.user_of_proxy(scope["headers"])
        # To WSGI an underscore is the same as a hyphen.
        scope["headers"] = [
            (name, value)
            for name, value in scope["headers"]
            if name.lower() not in DROPPED_HEADERS and b"_" not in name
        ]
        route = self._routes.match(scope["method"], scope["path"])
        account = ANONYMOUS
        if route is None or route.kind != routes.OPEN:
            account = await self._account(scope, user_of_proxy)
            if route is None or route.kind == routes.REFUSED:
                raise Refusal(
                    Reason.NOT_OFFERED,
                    "this server does not offer that; it offers "
                    "experiments, runs, artifacts and models",
                )
            if route.kind == routes.ADMINISTER and not account.is_admin:
                raise Refusal(Reason.DENIED, f"{account.username} is no administrator")
            if path := route.named.get("artifact_path"):
                content.check_path(path, is_upload=route.kind == routes.UPLOAD)
        return route, account

    async def _account(self, scope: Scope, user_of_proxy: str) -> Account:
        if not user_of_proxy:
            client = scope["client"][0] if scope.get("client") else ""
            return await self._logins.account(header(scope["headers"], b"authorization"), client)
        account, authorization = await proxy_account(user_of_proxy)
        others = [item for item in scope["headers"] if item[0].lower() != b"authorization"]
        scope["headers"] = [*others, (b"authorization", authorization)]
        return account

    async def _answer(
        self, route: Route, account: Account, scope: Scope, body: Body, size: int | None, send: Send
    ) -> None:
        receive: Receive = body.receive
        reads = scope["method"] in ("GET", "HEAD")
        query, scope["query_string"] = content.read_query(
            route, scope["query_string"], is_allowed=reads
        )
        if reads and size != 0:
            raise Refusal(Reason.INVALID, "this request has no body")
        if route.kind == routes.UPLOAD:
            if size is not None and size > body.largest_bytes:
                raise bodies.too_large(body.largest_bytes)
            await self._upload(route, scope, body, send)
            return
        if not reads:
            receive = await self._read_message(route, account, scope, body)
        elif route.kind == routes.SEARCH:
            await anyio.to_thread.run_sync(searches.check, route, query)
        elif route.rule == "/get-artifact" or route.rule.endswith("/artifacts/files"):
            scope = await anyio.to_thread.run_sync(_stream_file, route, scope)
        if route.kind == routes.SEARCH:
            await self._search(route, account, scope, receive, send)
        else:
            await self._application(scope, receive, send)

    async def _search(
        self, route: Route, account: Account, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a search in its account's turn. A failed one leaves one line in the log."""
        async with self._turns.turn(account.id):
            search, failed = searches.limit_time(), list[Message]()

            async def send_result(message: Message) -> None:
                if failed or message.get("status") == 500:
                    failed.append(message)
                elif not search.is_overdue:
                    await send(message)

            await self._application(scope, receive, send_result)
        if search.failure:
            values = (route.rule, account.username, search.failure)
            LOGGER.warning("%s: a search of %s failed: %s", *values)
        if search.is_overdue:
            raise Refusal(
                Reason.TOO_MANY,
                "the search takes too long; name fewer conditions, experiments or results",
            )
        if failed:
            # MLflow's code for many wrong searches; errors of the database have others.
            with suppress(ValueError):
                error = json.loads(b"".join(part.get("body", b"") for part in failed))
                raise Refusal(Reason.INVALID, error["message"])
        for part in failed:
            await send(part)

    async def _read_message(
        self, route: Route, account: Account, scope: Scope, body: Body
    ) -> Receive:
        """Read and check a body. Return the source of what replaces it."""
        is_read = route.kind in (routes.READ, routes.SEARCH)
        largest = bodies.LARGEST_SEARCH_BYTES if is_read else bodies.LARGEST_JSON_BYTES
        if route.rule == searches.GRAPHQL:
            largest = bodies.LARGEST_QUERY_BYTES
        raw = await body.read(largest)
        content_type = header(scope["headers"], b"content-type").partition(";")[0].strip().lower()
        if raw and content_type != "application/json":
            raise Refusal(
                Reason.INVALID, "the body is JSON; send it with Content-Type: application/json"
            )
        checked = await anyio.to_thread.run_sync(_check_message, route, account, raw)
        scope["headers"] = bodies.replace_body_headers(scope["headers"], checked)
        return bodies.replay(checked, body.receive)

    async def _upload(self, route: Route, scope: Scope, body: Body, send: Send) -> None:
        await anyio.to_thread.run_sync(backend.check_upload, route.named["artifact_path"])

        async def send_unless_refused(message: Message) -> None:
            if not body.refusal:
                await send(message)

        try:
            await self._application(scope, body.receive, send_unless_refused)
        finally:
            if body.refusal:
                raise body.refusal


@cached(TTLCache(1, READY_SECONDS))
def _is_ready() -> bool:
    """Check database and artifacts. The reason goes to the server's log: anybody may ask."""
    problem = readiness.problem(os.environ[backend.BACKEND], os.environ[backend.ARTIFACTS])
    if problem:
        LOGGER.warning("not ready: %s", problem)
    return not problem


def _stream_file(route: Route, scope: Scope) -> Scope:
    """Return the request of a file for the one route that streams files.

    Other routes hold a whole file in memory while a client reads it slowly.
    """
    query = dict(parse_qsl(scope["query_string"].decode()))
    try:
        run = query.get("run_id") or query.get("run_uuid", "")
        model = route.named.get("model_id", "")
        _, uri = backend.locate(model or run, is_model=bool(model))
    except LookupError:
        raise Refusal(Reason.NOT_FOUND, "there is no such run or model") from None
    folder = uri.removeprefix(backend.ARTIFACT_SCHEME).strip("/")
    path = f"{folder}/{query.get('path') or query.get('artifact_file_path', '')}"
    content.check_path(path)
    address = f"{ARTIFACTS}/{quote(path)}".encode()
    return {**scope, "path": f"{ARTIFACTS}/{path}", "raw_path": address, "query_string": b""}


def _check_message(route: Route, account: Account, raw: bytes) -> bytes:
    """Return a body as it is sent on.

    Raises:
        Refusal: The body names things of others, or a thing in two ways.
    """
    message, body = content.read_body(route, raw)
    if route.kind == routes.SEARCH:
        searches.check(route, message)
    _check_names(route, account, message)
    if route.kind == routes.WRITE and not account.is_admin:
        for kind, identifier in content.ids(route, message):
            _check_owner(account, kind, identifier)
    return body


def _check_names(route: Route, account: Account, body: dict[str, Any]) -> None:
    """Raise Refusal for a name that the account may not give."""
    action = route.rule.partition("/mlflow/")[2]
    name, new_name = body.get("name"), body.get("new_name")
    teams = None if account.is_admin else backend.teams(account)
    if action in ("roles/create", "roles/update") and "name" in body:
        names.check(name, names.TEAM)
    elif action == "users/create":
        names.check(body.get("username"), names.USER)
    elif action == "experiments/create":
        names.check_owned(name, names.EXPERIMENT, teams)
    elif action == "experiments/update":
        names.check_owned(new_name, names.EXPERIMENT, teams)
    elif route.kind == routes.WRITE and action.startswith(("registered-models", "model-versions")):
        if teams is not None or action == "registered-models/create":
            names.check_owned(name, names.MODEL, teams)
        if action == "model-versions/create":
            source = content.check_source(body)
            if source and teams is not None:
                names.check_owned(source, names.MODEL, teams)
        if action == "registered-models/rename":
            names.check_owned(new_name, names.MODEL, teams)


def _check_owner(account: Account, kind: str, identifier: str) -> None:
    """Raise Refusal for a missing thing, and for one that the account may not write."""
    experiment = identifier
    try:
        if kind != content.EXPERIMENT:
            experiment, _ = backend.locate(identifier, is_model=kind == content.MODEL)
    except LookupError:
        raise Refusal(Reason.NOT_FOUND, f"there is no {kind} {identifier}") from None
    if experiment == backend.DEFAULT_EXPERIMENT:
        team = min(backend.teams(account), default="TEAM")
        raise Refusal(
            Reason.DENIED,
            "experiment Default is read-only; "
            f"name your team's: MLFLOW_EXPERIMENT_NAME={team}/launches",
        )
    if not backend.may_write(account, experiment):
        raise Refusal(
            Reason.DENIED,
            "no permission: "
            f"{kind} {identifier} is of an experiment that {account.username} may not write",
        )
