"""The independent nodes of a Redlock: which ones are out, and which calls they missed and must still get."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from hiredis import ReplyError

from fencepost.backends.redis.answers import Fits, pong
from fencepost.backends.redis.connection import LATER, Dial, Endpoint, cause, pack, refusal, spell
from fencepost.backends.redis.nodes import Node
from fencepost.backends.redis.scripts import Script, build, scripts
from fencepost.backends.redis.topology import fixed, kind
from fencepost.backends.redlock.broadcast import ask, connect
from fencepost.driver import Driver
from fencepost.driver.backoff import Backoff
from fencepost.driver.service import Run, Service
from fencepost.errors import BackendError

_SOON, _LATEST = 0.1, 1.0  # seconds between two looks at a node that is out
_OWED, _BATCH = 4096, 64  # the most missed calls that are kept for one node, and how many are sent at once
_OUTLIVED = 60.0  # so many seconds after the longest ttl, a missed call no longer matters
# Errors that soon pass. After any other error, sending the call again would not help.
_PASSING = (*LATER, "NOSCRIPT", "BUSY", "MISCONF")


class NodeScripts(NamedTuple):
    """The scripts that a node runs."""

    take: Script
    keep: Script
    leave: Script
    renew: Script
    break_lock: Script
    status: Script
    bump: Script


@cache
def node_scripts() -> NodeScripts:
    redis = scripts("clock")
    take, keep, leave = (build(f"redlock_{name}", {}) for name in ("take", "keep", "leave"))
    return NodeScripts(take, keep, leave, redis.renew, redis.break_lock, redis.status, redis.bump)


class Call(NamedTuple):
    """A script to run, with its keys and arguments."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[Any, ...] = ()

    def request(self) -> bytes:
        return pack(("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args))

    def text(self) -> bytes:
        return pack(("EVAL", self.script.text, len(self.keys), *self.keys, *self.args))


class Member:
    """One node. A node that failed is out: requests do not wait for it until it has answered again."""

    def __init__(self, node: Node, endpoint: Endpoint) -> None:
        self.node = node
        self.endpoint = endpoint
        self.out: BackendError | None = None
        self.look_at = 0.0
        self.pauses = Backoff(_SOON, _LATEST)
        self.owed: dict[Call, float] = {}
        """Calls that it missed, and until when each matters: they free keys, and refuse late attempts."""

    def owe(self, call: Call, until: float) -> None:
        self.owed[call] = until
        while len(self.owed) > _OWED:
            self.owed.pop(next(iter(self.owed)), None)


Heard = dict[Member, list[Any] | BackendError]


class Members:
    """All nodes of one URL."""

    def __init__(self, driver: Driver, dial: Dial, endpoints: Sequence[Endpoint]) -> None:
        self._driver = driver
        self._dial = dial
        self._closed = False
        self.all = [
            Member(kind(driver)(dial, fixed(endpoint), "", lambda node, push: None, lambda node: None), endpoint)
            for endpoint in endpoints
        ]
        self._looks = {
            member: Service(driver, functools.partial(self._look, member), "fencepost-redlock-look")
            for member in self.all
        }
        self.quorum = len(self.all) // 2 + 1
        self.longest = 0.0
        """The longest ttl that was asked for."""

    async def connect(self) -> None:
        """Connect before the first request, for asyncio: a task that is cancelled here has not sent anything yet."""
        if not self._driver.blocking:
            apart = [member for member in self.all if member.out is None and member.node.at_hand() is None]
            if apart:
                at_hand = sum(member.node.at_hand() is not None for member in self.all)
                failures = await connect([member.node for member in apart], self._dial, at_hand=at_hand)
                self._judge(dict(zip(apart, failures, strict=True)))

    async def ask(self, calls: Sequence[Call], members: Sequence[Member] | None = None) -> Heard:
        """Run scripts on all members, or on these; return the replies of each, or its error.

        Among the replies, an error of the server is a BackendError.
        """
        wanted = self.all if members is None else members
        heard: Heard = {}
        # Members that are out are asked only if there is no majority without them.
        for group in ([each for each in wanted if each.out is None], [each for each in wanted if each.out is not None]):
            if sum(isinstance(each, list) for each in heard.values()) < self.quorum:
                requests = [call.request() for call in calls], [call.script.fits for call in calls]
                heard |= await self._round(dict.fromkeys(group, requests))
        # A server that was restarted, or executed SCRIPT FLUSH, has lost the scripts: send their text.
        again = {
            member: [index for index, reply in enumerate(replies) if _unknown(reply)]
            for member, replies in heard.items()
            if isinstance(replies, list) and any(map(_unknown, replies))
        }
        if again:
            texts = {
                member: ([calls[index].text() for index in indices], [calls[index].script.fits for index in indices])
                for member, indices in again.items()
            }
            for member, replies in (await self._round(texts)).items():
                known = heard[member]
                if isinstance(replies, BackendError) or isinstance(known, BackendError):
                    heard[member] = replies
                    continue
                for index, reply in zip(again[member], replies, strict=True):
                    known[index] = reply
        for member in wanted:
            if member not in heard:  # nothing was sent to it, so this error is not ambiguous, even if ``out`` is
                why = str(member.out or f"{spell(member.endpoint)} was not asked")
                heard[member] = BackendError(why, backend=self._dial.scheme, ambiguous=False)
            replies = heard[member]
            if isinstance(replies, list):
                heard[member] = [
                    refusal(f"{reply} (at {spell(member.endpoint)})", self._dial.scheme)
                    if reply.__class__ is ReplyError
                    else reply
                    for reply in replies
                ]
        return heard

    async def one(self, call: Call, members: Sequence[Member] | None = None) -> dict[Member, Any]:
        """The same for one script: the reply of each member, or a BackendError."""
        heard = await self.ask([call], members)
        return {member: said if isinstance(said, BackendError) else said[0] for member, said in heard.items()}

    async def tell(self, calls: Sequence[Call], members: Sequence[Member] | None = None) -> list[dict[Member, Any]]:
        """The replies of each member to each script; a member that fails gets the calls as soon as it answers again."""
        try:
            heard = await self.ask(calls, members)
        except GeneratorExit:
            raise  # no loop is left to run anything in
        except BaseException:
            for call in calls:
                self.owe(call, self.all if members is None else members)
            raise
        said = [
            {member: each if isinstance(each, BackendError) else each[index] for member, each in heard.items()}
            for index in range(len(calls))
        ]
        for call, replies in zip(calls, said, strict=True):
            self.owe(call, [member for member, reply in replies.items() if isinstance(reply, BackendError)])
        return said

    def owe(self, call: Call, members: Iterable[Member]) -> None:
        """Let these members run a script as soon as they answer again."""
        until = self._driver.now() + self.longest + _OUTLIVED
        for member in members:
            member.owe(call, until)
            self._look_after(member)

    def lacking(self, errors: Sequence[BackendError], *, ambiguous: bool | None = None) -> BackendError:
        """The error if too few members answered."""
        why = "; ".join(str(error) for error in errors)
        return BackendError(
            f"{len(self.all) - len(errors)} of {len(self.all)} Redis answered, and it takes {self.quorum}: {why}",
            backend=self._dial.scheme,
            ambiguous=any(error.ambiguous for error in errors) if ambiguous is None else ambiguous,
        )

    async def close(self) -> None:
        self._closed = True
        for member in self.all:
            await member.node.end()

    def forked(self) -> None:
        self._closed = True
        for member in self.all:
            member.node.forked()

    # Who is out

    async def _round(self, requests: dict[Member, tuple[list[bytes], list[Fits]]]) -> Heard:
        answers = await ask([(member.node, member.endpoint, *texts) for member, texts in requests.items()], self._dial)
        heard = dict(zip(requests, answers, strict=True))
        self._judge(heard)
        return heard

    def _judge(self, heard: Mapping[Member, list[Any] | BackendError | None]) -> None:
        """Note which members are out, and look at those that have been out for a while, or have missed calls."""
        now = self._driver.now()
        for member, answer in heard.items():
            if isinstance(answer, BackendError):
                if member.out is None:
                    member.pauses.reset()
                    member.look_at = now + member.pauses.pause
                member.out = answer
            elif member.out is not None and not member.owed:
                member.out = None
        for member in self.all:
            if member.owed or (member.out is not None and member.look_at <= now):
                self._look_after(member)

    def _look_after(self, member: Member) -> None:
        self._looks[member].ensure()  # if no thread can be started just now, the next request tries again

    async def _look(self, member: Member, run: Run) -> None:
        """Check whether a member answers again, and send it the calls that it missed; repeat until it has none left."""
        try:
            while not self._closed:
                await self._tell_owed(member)
                if run.ends(lambda: not member.owed):
                    return
        finally:
            if self._closed:
                member.node.close()  # it may have been connected after ``close``

    async def _tell_owed(self, member: Member) -> None:
        while not self._closed:
            now = self._driver.now()
            for call, until in member.owed.copy().items():
                if until <= now:
                    member.owed.pop(call, None)
            owed = list(member.owed)[:_BATCH]
            requests = [call.text() for call in owed[:1]] + [call.request() for call in owed[1:]] or [pack(("PING",))]
            fits = [call.script.fits for call in owed] or [pong]
            (answer,) = await ask([(member.node, member.endpoint, requests, fits)], self._dial)
            if isinstance(answer, list):
                told = [call for call, reply in zip(owed, answer, strict=False) if not _passing(reply)]
                for call in told:
                    member.owed.pop(call, None)
                if not member.owed:
                    member.out = None
                    member.pauses.reset()
                    return
                if told:
                    continue
            else:
                member.out = answer
            member.look_at = self._driver.now() + member.pauses.next()
            if not member.owed:
                return
            await self._driver.sleep(member.look_at - self._driver.now())


def _passing(reply: Any) -> bool:
    return reply.__class__ is ReplyError and cause(reply).startswith(_PASSING)


def _unknown(reply: Any) -> bool:
    return reply.__class__ is ReplyError and str(reply).startswith("NOSCRIPT")
