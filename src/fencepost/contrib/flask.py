"""Flask: locks as an extension, a lease for each request, a guard in front.

    fence = Fencepost()

    def create_app():
        app = Flask(__name__)
        app.config["FENCEPOST_URL"] = "redis://localhost:6379/0"
        fence.init_app(app)
        return app

    @bp.post("/accounts/<int:account_id>/pay")
    @fence.holding("account/{account_id}")
    def pay(account_id, lease):
        with engine.connect() as conn, postgres.fenced(conn, lease.name, lease):
            ...

A request whose lock is busy is answered 423 with Retry-After, one that lost its lock 409, and 503 says that the store
did not answer; see docs/flask.md. `fencepost.contrib.wsgi` is for other WSGI applications.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from flask import Flask, Response, current_app, has_app_context, request
from werkzeug.exceptions import HTTPException

from fencepost.contrib.web import Answer, Terms, answer, misnamed, remember, was_done
from fencepost.driver import run
from fencepost.errors import BackendError, ConfigError, LeaseLost, NotAcquired, Refused
from fencepost.events import Hook
from fencepost.guards import asgi, wsgi
from fencepost.guards import headers as http
from fencepost.guards.marks import Marks
from fencepost.guards.policy import Policy
from fencepost.locks import awaited, yields
from fencepost.naming import Template
from fencepost.signing import Keys
from fencepost.sync import Credentials, Lease, Locks, connect

__all__ = ["Fencepost", "fenced"]

Duration = float | timedelta
View = TypeVar("View", bound=Callable[..., Any])

_NAME = "fencepost"


class _State(NamedTuple):
    """What belongs to one application."""

    locks: Locks
    terms: Terms


class Fencepost:
    """The extension: the locks of each application that it was initialised with, and what its requests do with them.

    ``app.config`` has FENCEPOST_URL, a URL or a client as `fencepost.connect` takes it, and may have FENCEPOST_TTL,
    FENCEPOST_TIMEOUT (how long a request waits for its lock), FENCEPOST_BUSY (the status of one that waited so long)
    and FENCEPOST_RETRY_AFTER (in whole seconds).
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        credentials: Credentials | None = None,
        options: Mapping[str, str | int | float | bool] | None = None,
        queue_limit: int = 10_000,
        hooks: Iterable[Hook] = (),
        keys: Keys | None = None,
    ) -> None:
        self._options: dict[str, Any] = {"queue_limit": queue_limit, "hooks": tuple(hooks), "keys": keys}
        self._options |= {"credentials": credentials, "options": options}
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Give the application its locks. Nothing is contacted before the first one, and a forked worker has its own.

        ConfigError for an invalid setting, or an application that has locks already.
        """
        if _NAME in app.extensions:
            raise ConfigError(f"{app.name!r} has its locks already; call init_app() once for each application")
        config = app.config
        terms = Terms.of(
            config.get("FENCEPOST_TIMEOUT", 2.0),
            config.get("FENCEPOST_BUSY", 423),
            config.get("FENCEPOST_RETRY_AFTER", 1),
        )
        locks = connect(config.get("FENCEPOST_URL"), ttl=config.get("FENCEPOST_TTL", 15.0), **self._options)
        app.extensions[_NAME] = _State(locks, terms)

    def close(self, app: Flask) -> None:
        """Release what the application's locks still hold, and disconnect: for gunicorn's ``worker_exit``, or tests."""
        _state(app).locks.close()

    @property
    def locks(self) -> Locks:
        """The locks of the current application; ConfigError outside an application context."""
        return _state().locks

    @contextmanager
    def lock(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        timeout: Duration | None = None,
        max_hold: Duration | None = None,
        busy: int | None = None,
        retry_after: int | None = None,
    ) -> Iterator[Lease]:
        """Hold a lock while a request is served. HTTPException if it is busy or lost, or its store does not answer.

        404 for a name that no lock can have, since names come from requests.
        """
        locks, defaults = _state()
        terms = defaults.but(timeout, busy, retry_after)
        if wrong := misnamed(name):
            raise _Answered(wrong)
        lease = None
        try:
            with locks.lock(name, ttl=ttl, timeout=terms.timeout, max_hold=max_hold) as lease:
                yield lease
        except (BackendError, LeaseLost, NotAcquired, Refused) as error:
            if found := answer(error, lease, terms):
                raise _Answered(found) from error
            raise

    def holding(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        timeout: Duration | None = None,
        max_hold: Duration | None = None,
        busy: int | None = None,
        retry_after: int | None = None,
    ) -> Callable[[View], View]:
        """Hold a lock around a view, below its route; the view takes the lease as ``lease``.

        ``name`` has the view's parameters in it: ``account/{account_id}``. Their values are those that the route's
        converters made, so write ``<int:account_id>`` there: then /accounts/42 and /accounts/042 take one lock.
        """
        template = Template(name)
        options = {"ttl": ttl, "timeout": timeout, "max_hold": max_hold, "busy": busy, "retry_after": retry_after}
        if busy is not None or retry_after is not None or timeout is not None:
            Terms.of(0.0, 423, 1).but(timeout, busy, retry_after)  # raises now for invalid options

        def decorate(view: View) -> View:
            _require_parameters(view, template)

            @functools.wraps(view)
            def held(*args: Any, **kwargs: Any) -> Any:
                try:
                    lock = self.lock(template.name(kwargs), **options)  # type: ignore[arg-type]
                except ConfigError as error:
                    raise _Answered(Answer(404, "no such resource", {})) from error
                with lock as lease:
                    return current_app.ensure_sync(view)(*args, **kwargs, lease=lease)

            return held  # type: ignore[return-value]

        return decorate

    def guard(
        self,
        app: Flask,
        endpoints: Mapping[str, str],
        *,
        marks: Marks | None = None,
        hooks: Iterable[Hook] = (),
        policy: Policy | None = None,
    ) -> None:
        """Put a guard in front of an application's endpoints: a write without a token is answered 428, a stale one 409.

        For example::

            fence.guard(app, {"pay": "account/{account_id}"})

        The names are those of the views, ``blueprint.view`` for one of a blueprint. The view admits the stamp in its
        own transaction: it finds it by ``fenced``. See `fencepost.guards.wsgi.Fence` for the options.
        """
        templates = {endpoint: Template(name) for endpoint, name in endpoints.items()}

        def key(environ: wsgi.Environ) -> str | None:
            for endpoint in templates:
                if endpoint not in app.view_functions:
                    raise ConfigError(f"there is no endpoint {endpoint!r} to guard; there are {_known(app)}")
            try:
                adapter = app.create_url_adapter(app.request_class(environ))
                assert adapter is not None, "there is a request"
                endpoint, values = adapter.match()
            except HTTPException:  # a redirect, or no such page: Flask answers it itself
                return None
            template = templates.get(endpoint)
            return None if template is None else template.fill(values)

        app.register_error_handler(Refused, _refused)
        inner: Any = app.wsgi_app
        app.wsgi_app = wsgi.Fence(  # type: ignore[method-assign, assignment]
            inner, key, marks=marks, hooks=hooks, policy=policy
        )

    def once_per_fleet(
        self,
        name: str,
        job: Callable[[Lease], object],
        *,
        memory: Callable[[], AbstractContextManager[Any]],
        ttl: Duration | None = None,
        timeout: Duration | None = None,
    ) -> bool:
        """Return once the job called ``name`` is done, by this process (True) or by another one, now or before.

        For the module that the server imports, in ``with app.app_context():``: one worker runs the job, the others wait
        for it. ``memory`` opens a connection that `fencepost.once` takes, such as ``engine.connect``; it remembers the
        name. To run a job again, such as with the next release, give it another name. A job that raises was not done:
        the next worker runs it. If the first worker is frozen for longer than its ttl, two run the job at once, so the
        job must write through a guard, with the lease that it is given.

        Raises what the job raises, NotAcquired after ``timeout`` seconds, LeaseLost, BackendError.
        """
        locks = self.locks
        if awaited(job) or yields(job):
            raise _unfinished(job)
        opening = functools.partial(_blocking, memory)
        if run(was_done(opening, name)):
            return False
        with locks.lock(name, ttl=ttl, timeout=timeout) as lease:
            if run(was_done(opening, name)):
                return False
            result = job(lease)
            if inspect.iscoroutine(result):  # of a plain function around a coroutine function
                result.close()
                raise _unfinished(job)
            run(remember(opening, name))
        return True


def fenced() -> asgi.Fenced:
    """The stamp of a request behind ``Fencepost.guard``; ConfigError if there is no guard in front of its view."""
    found = request.environ.get("fencepost")
    if not isinstance(found, asgi.Fenced):
        raise ConfigError(f"no guard is in front of {request.endpoint!r}; name it in fence.guard(app, ...)")
    return found


class _Answered(HTTPException):
    """The answer to a request that could not be served under its lock, for Flask and the handlers it knows."""

    def __init__(self, found: Answer) -> None:
        super().__init__(found.detail)
        self.code = found.status
        self._headers = found.headers

    def get_headers(self, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
        return [*super().get_headers(*args, **kwargs), *self._headers.items()]


def _state(app: Flask | None = None) -> _State:
    if app is None and not has_app_context():
        raise ConfigError("the locks belong to an application; use them in a request, or 'with app.app_context():'")
    found = (app or current_app).extensions.get(_NAME)
    if not isinstance(found, _State):
        raise ConfigError("this application has no locks yet; call fence.init_app(app)")
    return found


def _blocking(memory: Callable[[], Any]) -> Any:
    """What ``memory`` opens; ConfigError if that has to be awaited."""
    opened = memory()
    if not hasattr(opened, "__enter__"):
        if inspect.iscoroutine(opened):
            opened.close()
        raise ConfigError(
            f"memory= opens a connection that blocks, for a 'with' block, such as engine.connect; not {type(opened)!r}"
        )
    return opened


def _unfinished(job: object) -> ConfigError:
    what = getattr(job, "__qualname__", job)
    return ConfigError(f"the job {what} returns before its work is done, and would be remembered as done; let it block")


def _refused(error: Refused) -> Response:
    found = http.refusal(error)
    return Response(found.body, found.status, found.headers, content_type="application/json")


def _known(app: Flask) -> str:
    return ", ".join(sorted(app.view_functions))


def _require_parameters(view: Callable[..., Any], template: Template) -> None:
    if yields(view):
        raise ConfigError(
            f"the view {view.__name__!r} yields its answer, and would run when the lock is free again; return the "
            f"answer, or take the lock inside, by fence.lock(...) under stream_with_context"
        )
    parameters = inspect.signature(view).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for name in ("lease", *template.fields):
        if name not in parameters:
            raise ConfigError(
                f"the view {view.__name__!r} takes no {name!r}"
                + ("; the lease is passed by that name" if name == "lease" else f", which {template.text!r} needs")
            )
