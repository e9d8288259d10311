"""A client in a process of its own, which a test commands, freezes and kills.

``python -m tests.conformance.worker FACE URL`` reads one command per line, ``[number, verb, argument, ...]`` as
JSON. It carries them out side by side, and answers each with a line ``[number, outcome]``. It ends with its
standard input, whatever it is doing.
"""

import asyncio
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from fencepost.errors import FencepostError
from tests.conformance.faces import Client, Hold
from tests.harness.child import Child
from tests.harness.threads import on_thread


class Worker:
    """The test's end of it."""

    def __init__(self, face: str, url: str) -> None:
        self.child = Child.python("-m", "tests.conformance.worker", face, url)
        self._url = url
        self._killed = False
        self._told = 0
        self._answers: dict[int, Any] = {}
        self._reading = asyncio.Lock()

    def tell(self, verb: str, *arguments: Any) -> int:
        """Send a command; ``answer`` has its outcome, by the number returned."""
        self._told += 1
        self.child.tell_json([self._told, verb, *arguments])
        return self._told

    async def answer(self, number: int) -> Any:
        """The outcome of a command. Raises ChildFailed, with the worker's traceback, if it ended instead."""
        while number not in self._answers:
            async with self._reading:
                if number not in self._answers:
                    done, outcome = await on_thread(self.child.json)
                    self._answers[done] = outcome
        return self._answers.pop(number)

    async def ask(self, verb: str, *arguments: Any) -> Any:
        return await self.answer(self.tell(verb, *arguments))

    def check(self) -> None:
        """Raise ChildFailed, with the worker's traceback, if it ended by itself."""
        if not self._killed:
            self.child.check()

    def kill(self) -> None:
        """SIGKILL it: no clean-up of any kind runs."""
        self._killed = True
        self.child.kill()

    def freeze(self) -> None:
        self.child.freeze(self._url)

    def thaw(self) -> None:
        self.child.thaw()

    def close(self) -> None:
        self._killed = True
        self.child.close()


async def increment(client: Client, name: str, path: Path, rounds: int, **options: Any) -> list[int]:
    """Read, add one, write back, each time under the lock: any overlap loses an update. The tokens, in order."""
    tokens = []
    for _ in range(rounds):
        lease = await client.acquire(name, **options)
        value = int(path.read_text())
        await asyncio.sleep(0)
        path.write_text(str(value + 1))
        tokens.append(lease.token)
        assert await lease.release()
    return tokens


async def obey(client: Client, holds: dict[str, Hold], verb: str, arguments: list[Any]) -> Any:
    name = arguments[0]
    if verb == "acquire":
        holds[name] = await client.acquire(name, **arguments[1])
        return {"token": holds[name].token, "holder": holds[name].holder}
    if verb == "share":
        holds[name] = await client.share(name, **arguments[1])
        return {"token": holds[name].token, "holder": holds[name].holder}
    if verb == "release":
        return await holds.pop(name).release()
    if verb == "wait_lost":
        return await holds[name].wait_lost(arguments[1])
    if verb == "increment":
        path, rounds, options = arguments[1:]
        return await increment(client, name, Path(path), rounds, **options)
    raise AssertionError(f"no such command: {verb}")


async def serve(face: str, url: str) -> None:
    client, holds = Client(face, url), dict[str, Hold]()
    commands: asyncio.Queue[list[Any]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(commands.put_nowait, json.loads(line))
        os._exit(0)

    async def carry_out(number: int, verb: str, *arguments: Any) -> None:
        try:
            outcome = await obey(client, holds, verb, list(arguments))
        except FencepostError as error:
            outcome = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps([number, outcome]), flush=True)

    threading.Thread(target=listen, daemon=True).start()
    async with asyncio.TaskGroup() as group:  # which ends the process, with a traceback, for any other error
        while True:
            group.create_task(carry_out(*await commands.get()))


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
