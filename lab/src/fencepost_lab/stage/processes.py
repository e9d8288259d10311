"""Real processes: workers that go step by step, as they are told, and resource services.

What they do next never depends on luck: a worker waits before each step until it is let go, and who
lets it go waits for what it says.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from fencepost.driver import boottime
from fencepost.errors import FencepostError
from fencepost_lab.history.format import decode
from fencepost_lab.servers.freeze import is_stopped
from fencepost_lab.servers.processes import HOST
from fencepost_lab.stage.nursery import Forked, Nursery
from fencepost_lab.stage.worker import Fact

T = TypeVar("T")

_WORKER = ("worker", "--json", "--steps", "--metrics", "off")
_MEMBER = ("fleet", "work", "--json", "--orders", "--metrics", "off")
_PATIENCE = 60.0  # seconds that a step may take, on however slow a machine, before something is wrong


class Unexpected(FencepostError):
    """What was to be shown did not appear; the message says what did."""


def told(errors: Path) -> str:
    """The end of what the processes complained about."""
    return errors.read_text("utf-8", "replace")[-2000:]


class StepWorker:
    """A worker process that waits before each step until it is let go."""

    def __init__(self, name: str, process: Forked, tell: Callable[[Fact], None], errors: Path) -> None:
        self.name = name
        self.facts: list[Fact] = []
        self._process = process
        self._tell = tell
        self._errors = errors
        self._used = 0
        self._next = ""
        self._news = asyncio.Event()
        self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for line in self._process.stdout:
            fact = decode(line)
            self.facts.append(fact)
            self._tell(fact)
            self._news.set()
        await self._process.wait()
        self._news.set()

    async def until(self, *events: str) -> Fact:
        """The next fact with one of these names; Unexpected if the worker ends without it."""
        try:
            async with asyncio.timeout(_PATIENCE):
                while True:
                    self._news.clear()
                    while self._used < len(self.facts):
                        fact = self.facts[self._used]
                        self._used += 1
                        if fact["event"] in events:
                            return fact
                    if self._listener.done():
                        break
                    await self._news.wait()
        except TimeoutError:
            pass
        said = ", ".join(fact["event"] for fact in self.facts) or "nothing"
        wanted = " or ".join(events)
        raise Unexpected(f"worker {self.name} was to say {wanted}, and said: {said}\n{told(self._errors)}".strip())

    async def prepared(self) -> "StepWorker":
        """Return once the worker waits to take its next step."""
        self._next = self._next or (await self.until("ready"))["step"]
        return self

    async def go(self, step: str) -> None:
        """Let the worker take the step that it waits to take."""
        await self.prepared()
        if self._next != step:
            raise Unexpected(f"worker {self.name} was to {step}, but is about to {self._next}")
        self._next = ""
        self._process.stdin.write(b"\n")
        await self._process.stdin.drain()

    async def acquire(self) -> Fact:
        """Let the worker acquire the lock, however long that takes; its lease."""
        await self.go("acquire")
        return await self.until("acquired")

    async def read(self) -> Fact:
        """Let the worker read; what it read."""
        await self.go("read")
        return await self.until("read")

    async def write(self) -> Fact:
        """Let the worker write what it has read; the resource's answer."""
        await self.go("write")
        return await self.until("accepted", "refused")

    async def finish(self) -> Fact:
        """Let the worker release and end; whether the lock was still its own."""
        await self.go("release")
        fact = await self.until("released", "lost")
        await self._listener
        return fact

    async def stop(self) -> None:
        """SIGSTOP the worker, its renewals included; returns once the kernel has stopped it."""
        self._process.send_signal(signal.SIGSTOP)
        await self._stopped()
        self._fault("pause")

    def resume(self) -> None:
        """SIGCONT the worker."""
        self._fault("resume")
        self._process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """SIGKILL the worker; returns once it is dead."""
        self._process.kill()
        if (status := await self._process.wait()) != -signal.SIGKILL:
            raise Unexpected(f"worker {self.name} was to be killed, and ended by itself with {status}")
        self._fault("kill")

    def _fault(self, what: str) -> None:
        self._tell({"event": "fault", "do": what, "worker": self.name, "at": boottime()})

    async def frozen(self) -> None:
        """Return once the worker has announced its pause, and the kernel has stopped it.

        If this process was slow, the worker may be awake again. It says how long it stood still.
        """
        paused = await self.until("paused")
        await self._stopped(paused)

    async def _stopped(self, paused: Fact | None = None) -> None:
        """Return once the kernel has stopped the worker; with ``paused``, also if that pause is over."""
        try:
            async with asyncio.timeout(_PATIENCE):
                while not is_stopped(self._process.pid):
                    if paused is not None and self._slept(paused):
                        return
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise Unexpected(f"worker {self.name} did not stop") from None

    def _slept(self, paused: Fact) -> bool:
        """Whether a pause is over; Unexpected if the worker went on without having been stopped."""
        over = [fact for fact in self.facts if fact["event"] == "resumed" and fact["at"] >= paused["at"]]
        if over and (over[0]["mode"] != "stop" or over[0]["seconds"] < paused["seconds"]):
            raise Unexpected(f"worker {self.name} paused, but was not stopped")
        return bool(over)


class Processes:
    """A folder and the processes that work in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[Forked] = []
        self._errors = folder / "errors.log"
        self._nursery = Nursery(self._errors)
        self._stores = 0

    async def resource(
        self,
        *options: str,
        fence: bool,
        store: Path | None = None,
        host: str = HOST,
        namespaces: Sequence[str] = (),
    ) -> str:
        """Start a resource service, with its values in a file of its own unless ``store`` is one; its address."""
        self._stores += 1
        store = store or self.folder / f"resource-{self._stores}.db"
        switch = "on" if fence else "off"
        words = ("resource", "--json", "--host", host, "--port", "0", "--fence", switch, "--store", str(store))
        process = await self._start(*words, *options, namespaces=namespaces)
        try:
            async with asyncio.timeout(_PATIENCE):
                said = await process.stdout.readline()
        except TimeoutError:
            said = b""
        if not said:
            raise Unexpected(f"the resource service did not start\n{told(self._errors)}".strip())
        return str(json.loads(said)["url"])

    async def worker(
        self, name: str, tell: Callable[[Fact], None], *options: str, backend: str, resource: str = ""
    ) -> StepWorker:
        """A worker on the locks behind a URL; it waits to acquire. Whatever it says is told, and what befalls it.

        ``resource`` is for an address with a password in it.
        """
        words = (*_WORKER, "--name", name, *options)
        # Where no list of processes shows a password.
        process = await self._start(*words, FENCEPOST_URL=backend, FENCEPOST_RESOURCE=resource)
        return await StepWorker(name, process, tell, self._errors).prepared()

    async def member(self, group: str, *options: str, backend: str, namespaces: Sequence[str] = ()) -> Forked:
        """A worker of a group, which takes orders on stdin and tells lines of a history on stdout."""
        return await self._start(*_MEMBER, group, *options, namespaces=namespaces, FENCEPOST_URL=backend)

    async def workers(self, names: str, tell: Callable[[Fact], None], *options: str, backend: str) -> list[StepWorker]:
        """Workers that differ in nothing but their one-letter names."""
        return await together(*(self.worker(name, tell, *options, backend=backend) for name in names))

    @property
    def complaints(self) -> str:
        """The end of what the processes complained about."""
        return told(self._errors) if self._errors.exists() else ""

    async def _start(self, *command: str, namespaces: Sequence[str] = (), **environment: str) -> Forked:
        # A group of its own: Ctrl-C is for this process, and what a worker starts ends with it. If this process is
        # killed, it ends too.
        process = await self._nursery.fork(list(command), environment, namespaces)
        self._processes.append(process)
        return process

    async def clear(self) -> None:
        """End every process that still runs."""
        for process in self._processes:
            if process.returncode is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        for process in self._processes:
            await process.wait()
        await self._nursery.close()


@asynccontextmanager
async def open_processes() -> AsyncIterator[Processes]:
    """Processes in a temporary folder; however the block ends, nothing of it is left behind."""
    with TemporaryDirectory(prefix="fencepost-") as folder:
        built = Processes(Path(folder))
        try:
            yield built
        finally:
            await asyncio.shield(built.clear())


def run(job: Coroutine[Any, Any, T]) -> T:
    """Finish ``job`` in an event loop; SIGTERM cancels it, as Ctrl-C does, and then ends this process with 143.

    A signal handler that raises would do so anywhere inside the event loop, also halfway through the start of a
    process: asyncio would then wait for that process without end.
    """
    told = False

    async def main() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end() -> None:
            nonlocal told
            told = True
            task.cancel()

        before = signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(end))
        try:
            return await job
        finally:
            signal.signal(signal.SIGTERM, before)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if told:
            sys.exit(128 + signal.SIGTERM)
        raise


async def together(*parts: Coroutine[Any, Any, T]) -> list[T]:
    """All parts at once; the first failure ends them all."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
