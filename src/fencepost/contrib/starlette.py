"""FastAPI and Starlette: locks that open and close with the application, a lease for each request, a guard in front.

    fence = Fencepost("redis://localhost:6379/0")
    app = FastAPI(lifespan=fence.lifespan)
    Account = Annotated[Lease, fence.depends("account/{account_id}", account_id=int)]

    @app.post("/accounts/{account_id}/pay")
    async def pay(account_id: int, lease: Account):
        async with engine.connect() as conn, postgres.fenced(conn, lease.name, lease):
            ...

A request whose lock is busy is answered 423 with Retry-After, one that lost its lock 409, and 503 says that the store
did not answer; see docs/fastapi.md.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any, Literal

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.routing import compile_path

from fencepost import aio
from fencepost.clients.kinds import AsyncClient
from fencepost.contrib.web import Terms, answer, misnamed, remember, was_done
from fencepost.errors import BackendError, ConfigError, LeaseLost, NotAcquired, Refused
from fencepost.events import Hook
from fencepost.guards import asgi
from fencepost.guards.marks import Marks
from fencepost.guards.policy import Policy
from fencepost.locks import yields
from fencepost.naming import Template
from fencepost.signing import Keys

__all__ = ["Fencepost", "fenced", "guard"]

Duration = float | timedelta

_OPTIONS = ("ttl", "timeout", "max_hold", "busy", "retry_after", "scope")
_EXACT = ("int", "uuid", "str")
"""Convertors whose values have only one spelling."""


class Fencepost:
    """The locks of an application, open while it runs, and what its requests do with them.

    The options are those of `fencepost.aio.connect`, and for requests: ``timeout``, how long one waits for its lock;
    ``busy``, the status of one that waited so long; ``retry_after``, when it should come again, in whole seconds.
    """

    def __init__(
        self,
        url: str | AsyncClient | None = None,
        /,
        *,
        credentials: aio.Credentials | None = None,
        options: Mapping[str, str | int | float | bool] | None = None,
        ttl: Duration = 15.0,
        timeout: Duration = 2.0,
        busy: int = 423,
        retry_after: int = 1,
        queue_limit: int = 10_000,
        hooks: Iterable[Hook] = (),
        keys: Keys | None = None,
    ) -> None:
        self._url: Any = url
        self._options: dict[str, Any] = {"ttl": ttl, "queue_limit": queue_limit, "hooks": tuple(hooks), "keys": keys}
        self._options |= {"credentials": credentials, "options": options}
        self._terms = Terms.of(timeout, busy, retry_after)
        # One for each event loop: a test client runs the same application in several.
        self._open: dict[asyncio.AbstractEventLoop, list[aio.Locks]] = {}

    async def __aenter__(self) -> aio.Locks:
        """Open the locks, in a lifespan of your own. Inside another block of the same loop it is the same locks."""
        opened = self._open.setdefault(asyncio.get_running_loop(), [])
        try:
            opened.append(opened[0] if opened else aio.connect(self._url, **self._options))
        except BaseException:
            del self._open[asyncio.get_running_loop()]
            raise
        return opened[0]

    async def __aexit__(self, *_: object) -> None:
        """Release what is still held, and disconnect."""
        loop = asyncio.get_running_loop()
        locks = self._open[loop].pop()
        if not self._open[loop]:
            del self._open[loop]
            await locks.close()

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """Open the locks when the application starts, and close them when it ends: ``FastAPI(lifespan=...)``."""
        async with self:
            yield

    @property
    def locks(self) -> aio.Locks:
        """The open locks, for code outside requests. ConfigError if they are not open."""
        try:
            opened = self._open.get(asyncio.get_running_loop())
        except RuntimeError:
            raise ConfigError(
                "these locks are asyncio's, and there is no event loop here; let the endpoint be 'async def', or take "
                "the lease by a dependency, which a 'def' endpoint can use too"
            ) from None
        if not opened:
            raise ConfigError(
                "the locks are not open: start the application with lifespan=fence.lifespan, or 'async with fence:' "
                "in a lifespan of its own; a TestClient runs the lifespan only as 'with TestClient(app) as client:'"
            )
        return opened[0]

    @asynccontextmanager
    async def lock(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        timeout: Duration | None = None,
        max_hold: Duration | None = None,
        busy: int | None = None,
        retry_after: int | None = None,
    ) -> AsyncIterator[aio.Lease]:
        """Hold a lock while a request is served. HTTPException if it is busy or lost, or its store does not answer.

        404 for a name that no lock can have, since names come from requests.

        For example::

            async with fence.lock(f"account/{request.path_params['account_id']}") as lease:
                ...
        """
        terms = self._terms.but(timeout, busy, retry_after)
        if wrong := misnamed(name):
            raise HTTPException(wrong.status, wrong.detail)
        lease = None
        try:
            async with self.locks.lock(name, ttl=ttl, timeout=terms.timeout, max_hold=max_hold) as lease:
                yield lease
        except (BackendError, LeaseLost, NotAcquired, Refused) as error:
            if found := answer(error, lease, terms):
                raise HTTPException(found.status, found.detail, found.headers) from error
            raise

    def depends(
        self,
        key: str | Callable[..., str] | Callable[..., Awaitable[str]],
        /,
        *,
        ttl: Duration | None = None,
        timeout: Duration | None = None,
        max_hold: Duration | None = None,
        busy: int | None = None,
        retry_after: int | None = None,
        scope: Literal["function", "request"] = "function",
        **fields: Any,
    ) -> Any:
        """A dependency of FastAPI that yields the lease of a request: ``Annotated[Lease, fence.depends(...)]``.

        ``key`` is the lock's name with path parameters in it, and each of them is declared as the endpoint declares it:
        ``depends("account/{account_id}", account_id=int)``. So /accounts/42 and /accounts/042 take one lock. Or it is a
        dependency of your own that returns the name.

        The lock is released before the answer is sent, so that a slow client does not hold it; ``scope="request"``
        releases it afterwards, as a streaming answer that still writes needs it.
        """
        try:
            from fastapi import Depends
        except ModuleNotFoundError as error:
            raise ConfigError("depends() is for FastAPI: pip install fastapi; with Starlette use lock()") from error

        self._terms.but(timeout, busy, retry_after)  # raises now for invalid options
        options = {"ttl": ttl, "timeout": timeout, "max_hold": max_hold, "busy": busy, "retry_after": retry_after}
        if callable(key) and fields:
            raise ConfigError(f"a key that is a function declares its own parameters; take away {', '.join(fields)}")
        find = key if callable(key) else _finder(Template(key), fields)

        async def held(name: Annotated[str, Depends(find)]) -> AsyncIterator[aio.Lease]:
            async with self.lock(name, **options) as lease:  # type: ignore[arg-type]
                yield lease

        return Depends(held, scope=scope)

    async def once_per_fleet(
        self,
        name: str,
        job: Callable[[aio.Lease], Awaitable[object]],
        *,
        memory: Callable[[], AbstractAsyncContextManager[Any]],
        ttl: Duration | None = None,
        timeout: Duration | None = None,
    ) -> bool:
        """Return once the job called ``name`` is done, by this process (True) or by another one, now or before.

        For a lifespan, before its ``yield``: one worker runs the job, the others wait for it. ``memory`` opens a
        connection that `fencepost.once` takes, such as ``engine.connect``; it remembers the name. To run a job again,
        such as with the next release, give it another name. A job that raises, or loses its lock, was not done: the
        next worker runs it. If the first worker is frozen for longer than its ttl, two run the job at once, so the job
        must write through a guard, with the lease that it is given.

        Raises what the job raises, NotAcquired after ``timeout`` seconds, LeaseLost, BackendError.
        """
        if await was_done(memory, name):
            return False
        async with self.locks.lock(name, ttl=ttl, timeout=timeout) as lease:
            if await was_done(memory, name):
                return False
            work: Any = None if yields(job) else job(lease)
            if not inspect.isawaitable(work):
                what = getattr(job, "__qualname__", job)
                raise ConfigError(
                    f"the job {what} cannot be awaited, so nobody knows when it is done; let it be 'async def'"
                )
            await work
            await remember(memory, name)
        return True


def _finder(template: Template, fields: Mapping[str, Any]) -> Callable[..., str]:
    """A dependency that takes the template's fields as FastAPI validates them, and returns the name."""
    if clash := [field for field in template.fields if field in _OPTIONS]:
        raise ConfigError(f"{clash[0]!r} is an option of depends(); let the key be a function that returns the name")
    if missing := [field for field in template.fields if field not in fields]:
        raise ConfigError(
            f"say what {missing[0]!r} of {template.text!r} is, as its endpoint does: depends(..., {missing[0]}=int); "
            f"or the same thing, written in two ways, would have two locks"
        )
    if unknown := [field for field in fields if field not in template.fields]:
        raise ConfigError(f"{template.text!r} has no field {unknown[0]!r}")

    def find(**values: Any) -> str:
        try:
            return template.fill(values)
        except ConfigError as error:
            raise HTTPException(404) from error

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(field, kind, annotation=fields[field]) for field in template.fields]
    find.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return find


def guard(
    app: Any,
    paths: Mapping[str, str],
    *,
    marks: Marks | None = None,
    hooks: Iterable[Hook] = (),
    policy: Policy | None = None,
) -> None:
    """Put a guard in front of an application's paths: a write without a token is answered 428, a stale one 409.

    Each path is written as its route has it, and each of its fields names its convertor, ``int``, ``uuid`` or ``str``;
    or the same thing, written in two ways, would have two marks. The endpoint admits the stamp in its own transaction:
    it finds it by ``fenced``. See `fencepost.guards.asgi.Fence` for the options.

        guard(app, {"/accounts/{account_id:int}": "account/{account_id}"})
    """
    app.add_middleware(asgi.Fence, key=_routes(paths), marks=marks, hooks=hooks, policy=policy)


def fenced(connection: HTTPConnection) -> asgi.Fenced:
    """The stamp of a request behind ``guard``; with FastAPI ``Annotated[Fenced, Depends(fenced)]``.

    ConfigError if there is no guard in front of its path.
    """
    found = connection.scope.get("fencepost")
    if not isinstance(found, asgi.Fenced):
        raise ConfigError(f"no guard is in front of {connection.url.path!r}; name its path in guard(app, ...)")
    return found


def _routes(paths: Mapping[str, str]) -> Callable[[asgi.Scope], str | None]:
    compiled = []
    for path, name in paths.items():
        pattern, _, convertors = compile_path(path)
        template = Template(name)
        for field in template.fields:
            if field not in convertors:
                raise ConfigError(f"the path {path!r} has no field {field!r} for {name!r}")
            if not any(f"{{{field}:{kind}}}" in path for kind in _EXACT):
                raise ConfigError(
                    f"say what {field!r} of {path!r} is, in the route as well: {{{field}:int}}, {{{field}:uuid}} or "
                    f"{{{field}:str}}; or the same thing, written in two ways, would have two marks"
                )
        compiled.append((pattern, convertors, template))

    def key(scope: asgi.Scope) -> str | None:
        path, root = scope["path"], scope.get("root_path", "")
        if root and (path == root or path.startswith(root + "/")):  # as the router does
            path = path[len(root) :]
        for pattern, convertors, template in compiled:
            if found := pattern.match(path):
                values = found.groupdict()
                return template.fill({field: convertors[field].convert(values[field]) for field in template.fields})
        return None

    return key
