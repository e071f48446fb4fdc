"""The web application: routes, headers and tokens. What is said is made in `answers.py`, `curves.py`, `metrics.py`."""

from __future__ import annotations

import hmac
from functools import wraps
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response
from starlette.routing import Route

from ...coordinator import past
from ...errors import AddressError, EasyScaleError, UnavailableError, UserError
from .. import verified
from ..submit import desire
from . import answers, curves, metrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ...coordinator.kv import KeyValueStore
    from ...coordinator.views import JobView
    from ...storage.objects import ObjectStore
    from .archive import Archive, Past
    from .picture import Picture

log = structlog.get_logger()

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""On every answer: nothing is loaded from elsewhere, nothing inline runs, nobody frames it."""

VERBS: dict[str, Literal["running", "paused", "cancelled"]] = {
    "pause": "paused",
    "resume": "running",
    "cancel": "cancelled",
    "retry": "running",
}

MOST_COMMITS = 500
POINTS = 400

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/job.js": ("job.js", "text/javascript; charset=utf-8"),
    "/draw.js": ("draw.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


class _Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)  # a number that is not finite becomes null


class Served:
    """The API and the page.

    Args:
        kv: the key-value store. picture: what is seen of it.
        archive: histories from the object store. objects: that store itself, where forks are written.
        token: what steering asks for; None: nobody steers here.
        hosts: names by which a browser may call us; None: any. Elsewhere a foreign site could have its own name lead
            to our address, and read what is said here.
    """

    def __init__(
        self,
        kv: KeyValueStore,
        picture: Picture,
        archive: Archive,
        objects: ObjectStore,
        *,
        token: str | None = None,
        hosts: list[str] | None = None,
    ) -> None:
        self._kv, self._picture, self._archive, self._objects = kv, picture, archive, objects
        self._token = token
        self._hosts = hosts

    def application(self) -> Starlette:
        """As ASGI has it."""
        routes = [
            *(Route(path, self._file) for path in PAGE),
            Route("/healthz", _told(self.health)),
            Route("/metrics", _told(self.metrics)),
            Route("/api/cluster", _told(self.cluster)),
            Route("/api/jobs", _told(self.jobs)),
            Route("/api/pipelines", _told(self.pipelines)),
            Route("/api/workers", _told(self.workers)),
            Route("/api/jobs/{job}", _told(self.job)),
            Route("/api/jobs/{job}/timeline", _told(self.timeline)),
            Route("/api/jobs/{job}/commits", _told(self.commits)),
            Route("/api/jobs/{job}/verified", _told(self.verified)),
            Route("/api/jobs/{job}/scalars", _told(self.scalars)),
            Route("/api/jobs/{job}/fork", _told(self.fork), methods=["POST"]),
            Route("/api/jobs/{job}/{verb}", _told(self.steer), methods=["POST"]),
        ]
        middleware = [Middleware(_Headers)]
        if self._hosts is not None:
            middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=self._hosts, www_redirect=False))
        return Starlette(routes=routes, middleware=middleware)

    def _file(self, request: Request) -> Response:
        name, kind = PAGE[request.url.path]
        return Response(files(__package__).joinpath("page", name).read_bytes(), media_type=kind)

    def health(self, _: Request) -> Response:
        """200 if the key-value store answers, else 503."""
        view = self._picture.look()
        return _Json({"status": "ok", "coordinator": view.leader is not None})

    def metrics(self, _: Request) -> Response:
        """For Prometheus."""
        return Response(metrics.text(self._picture.look()), media_type="text/plain; version=0.0.4; charset=utf-8")

    def cluster(self, _: Request) -> Response:
        """See `answers.cluster`."""
        steering = self._token is not None
        return _Json(answers.cluster(self._picture.look(), self._kv.address, self._objects.address, steering=steering))

    def jobs(self, _: Request) -> Response:
        """See `answers.jobs`."""
        return _Json(answers.jobs(self._picture.look()))

    def pipelines(self, _: Request) -> Response:
        """See `answers.pipelines`."""
        return _Json(answers.pipelines(self._picture.pipelines()))

    def workers(self, _: Request) -> Response:
        """See `answers.workers`."""
        return _Json(answers.workers(self._picture.look()))

    def job(self, request: Request) -> Response:
        """See `answers.job`."""
        view, found = self._found(request)
        return _Json(answers.job(view, found.name))

    def timeline(self, request: Request) -> Response:
        """See `answers.timeline`."""
        found = self._found(request)[1]
        return _Json(answers.timeline(found, past.read(self._kv, found.name)))

    def verified(self, request: Request) -> Response:
        """What `verify` came to, newest first: see `verified.Verified`."""
        return _Json(verified.read(self._kv, self._found(request)[1].name)[::-1])

    def commits(self, request: Request) -> Response:
        """The newest commits, or those before a step: `?limit=100&before=STEP`."""
        known = self._past(request)
        limit, before = _number(request, "limit", 100, MOST_COMMITS), _number(request, "before", None, None)
        rows = [commit for commit in known.commits if before is None or commit.step < before]
        shown = [answers.commit(row) for row in rows[:limit]]
        return _Json(_how_far(known) | {"commits": shown, "more": len(rows) - len(shown)})

    def scalars(self, request: Request) -> Response:
        """See `curves.curves`: `?points=400`."""
        known = self._past(request)
        points = _number(request, "points", POINTS, curves.MOST_POINTS)
        return _Json(_how_far(known) | curves.curves(known, points or POINTS))

    def steer(self, request: Request) -> Response:
        """Pause, resume, cancel or retry a job."""
        self._require_token(request)
        verb = request.path_params["verb"]
        if verb not in VERBS:
            raise _Refused(404, "there is nothing here", f"what can be done with a job: {', '.join(VERBS)}, fork")
        found = self._found(request)[1]
        before = desire(self._kv, found.name, VERBS[verb], forgive=verb == "retry")
        self._steered(request, found.name, verb)
        return _Json({"job": found.name, "desired": VERBS[verb], "state": before.state})

    def fork(self, request: Request) -> Response:
        """Begin another job with a commit of this one: `?name=NEW&step=STEP&set=lr=0.01`; the newest unless told."""
        self._require_token(request)
        found, step = self._found(request)[1], _number(request, "step", None, None)
        if found.head is None:
            raise _Refused(409, f"job {found.name!r} has no commit yet", "wait for its first")
        from ..forking import fork  # imports torch, which takes seconds: only whoever forks waits for that
        from ..inspect import pairs_of

        changes = pairs_of(request.query_params.getlist("set"))
        made = fork(self._kv, self._objects, found, step, request.query_params.get("name", ""), changes)
        self._steered(request, found.name, "fork")
        return _Json({**made._asdict(), "forked": f"{found.name}@{made.step}"})

    def _require_token(self, request: Request) -> None:
        if self._token is None:
            raise _Refused(403, "this page is read-only", "start `easyscale serve` with --token-file to steer from it")
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # All of it is compared, however soon it differs: how long that takes tells nothing.
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token.encode()):
            raise _Refused(401, "the token is wrong", "send the one of --token-file, as `Authorization: Bearer TOKEN`")

    def _steered(self, request: Request, job: str, verb: str) -> None:
        self._picture.forget()
        log.info("serve.steered", job=job, verb=verb, by=request.client.host if request.client else "")

    def _found(self, request: Request) -> tuple[Any, JobView]:
        view, name = self._picture.look(), request.path_params["job"]
        found = view.jobs.get(name)
        if found is None or found.spec is None:
            raise _Refused(404, "there is no such job", "GET /api/jobs lists those that there are")
        return view, found

    def _past(self, request: Request) -> Past:
        found = self._found(request)[1]
        return self._archive.of(found.name, found.head.value.manifest if found.head else None)


class _Refused(Exception):  # noqa: N818 - it is an answer, not an accident
    """An answer that is no success: status, what is wrong, what to do."""

    def __init__(self, status: int, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.status, self.what, self.hint = status, what, hint

    def answer(self) -> Response:
        return _Json({"error": self.what, "hint": self.hint}, status_code=self.status)


def _told(handler: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """Errors as answers."""

    @wraps(handler)
    def handled(request: Request) -> Response:
        try:
            return handler(request)
        except _Refused as refused:
            return refused.answer()
        except (UnavailableError, AddressError) as error:
            return _Refused(503, "a store does not answer", str(error)).answer()
        except UserError as error:
            return _Refused(409, error.what, error.hint).answer()
        except EasyScaleError as error:
            log.warning("serve.failed", path=request.url.path, error=str(error))
            return _Refused(500, str(error)).answer()

    return handled


def _how_far(known: Past) -> dict[str, Any]:
    return {"complete": known.complete, "trouble": known.trouble, "older": known.older}


def _number(request: Request, name: str, default: int | None, most: int | None) -> int | None:
    given = request.query_params.get(name)
    if given is None:
        return default
    plain = given.isascii() and given.isdigit() and len(given) < 19
    if not plain or not 0 < int(given) <= (most or 1 << 62):
        upto = f" up to {most}" if most else ""
        raise _Refused(400, f"{name}={given[:40]!r} cannot be used", f"give a whole number from 1{upto}")
    return int(given)


class _Headers:
    """Puts `HEADERS` on every answer, errors of Starlette's included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def headed(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in HEADERS.items())]
            await send(message)

        forward: Callable[[Scope, Receive, Send], Awaitable[None]] = self._app
        await forward(scope, receive, headed)
