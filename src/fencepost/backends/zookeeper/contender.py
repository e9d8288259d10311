"""The queue of a ZooKeeper lock: our nodes in it, and how to join, watch and leave it."""

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, RolledBackError, SessionExpiredError
from kazoo.protocol.serialization import Create2, Delete, Exists, GetChildren, GetData, SetData, Sync, Transaction

from fencepost import check, holders
from fencepost.backend import LOOK
from fencepost.backends.base import Base
from fencepost.backends.sharing import blocking
from fencepost.backends.zookeeper import names
from fencepost.backends.zookeeper.address import Settings
from fencepost.backends.zookeeper.session import Reply, Session, sets
from fencepost.driver import Driver, Signal, stood_still
from fencepost.errors import ConfigError

_EPHEMERAL_SEQUENTIAL = 3
_CHANGED = "CHANGED"
_DELETED = "DELETED"
_LONG = 256  # nodes: listing a shorter queue takes less time than looking at three of its nodes


class Contender:
    """A holder's node in the queue of its lock, from before its creation until it is certainly gone."""

    __slots__ = (
        "_handed_over",
        "_last",
        "_lost",
        "_stem",
        "_wake",
        "ahead",
        "based",
        "created",
        "ended",
        "folder",
        "forsaken",
        "holder",
        "limit",
        "name",
        "session",
        "size",
        "token",
        "ttl",
    )

    def __init__(
        self,
        name: str,
        holder: str,
        folder: str,
        session: Session,
        ttl: float,
        lost: Callable[["Contender", str], None],
        limit: int | None = None,
    ) -> None:
        self.name = name
        self.holder = holder
        self.folder = folder
        self.session = session
        self.ttl = session.lasts(ttl)
        self.limit = limit  # of a sharer: how many may hold at once
        self.created: Reply | None = None
        self.token = 0  # the token of its grant; 0 if it has none
        self.based = False  # whether the lock had a base when last seen
        self.size = 0  # how many nodes the lock had when last seen
        self.ahead: list[str] = []  # the nodes before it when last seen, oldest first
        self.ended = False  # it is no longer needed; it is dropped as soon as the connection allows
        self.forsaken = False  # its waiter's coroutine was closed, and cannot clean up
        self._handed_over: Reply | None = None  # after a change of the node before it: whether that node still exists
        self._stem = ""
        self._last: Signal | None = None  # the signal that its waiter waited on last
        self._wake: Signal | None = None
        self._lost = lost

    @property
    def path(self) -> str:
        """Its node's path; empty if it has no node, or its path is not known."""
        created = self.created
        if created is None or created.value is None or created.era != self.session.era:
            return ""
        return str(created.value[0])

    @property
    def blocking(self) -> list[str]:
        """The nodes ahead that block this one."""
        return blocking(self.ahead, self.limit, names.limit)

    @property
    def abandoned(self) -> bool:
        """Whether its waiter is gone: its coroutine was closed, or its event loop has stood still for the ttl."""
        return self.forsaken or (self._last is not None and stood_still(self._last, self.ttl))

    @property
    def zxid(self) -> int:
        """The zxid that created its node: larger than that of every node before it."""
        assert self.created is not None
        return int(self.created.value[1].czxid)

    async def join(self, settings: Settings, driver: Driver) -> None:
        """Create the node and list the queue in one round trip; BackendError, ambiguous if the node may exist."""
        session, folder = self.session, self.folder
        identity, told = holders.split(self.holder)
        # As in kazoo's Election, the data of a candidate's node is the candidate's metadata.
        data = (told or f"{self.holder} {self.ttl:g}").encode()
        while True:
            answered = self._last = driver.signal()
            stem = names.LAYOUTS[settings.layout](identity, session.id)
            self._stem = f"{folder}/{names.share(identity, self.limit) if self.limit else stem}"
            self.created = session.send(Create2(self._stem, data, settings.acl, _EPHEMERAL_SEQUENTIAL))
            listed = session.send(GetChildren(folder, None), sets(answered))
            await session.answered(answered)
            if isinstance(self.created.error, NoNodeError):
                await session.make(folder)
                continue
            self.created.get()
            if await self._see(listed):
                return

    async def look(self) -> bool:
        """Read which nodes are ahead now, as the leader sees it; False if this node is no longer in the queue.

        After a hand-over this does not list the queue, which may be long. The node before this one was the first, so no
        node is ahead now: numbers grow, and a deleted node never comes back.
        """
        gone, self._handed_over = self._handed_over, None
        if gone is not None and self.path:
            paths = (self.folder, self.path, f"{self.folder}/{names.BASE}")
            synced, *replies = await self.session.ask(Sync("/"), *(Exists(path, None) for path in paths))
            queue, mine, base = (reply.value for reply in replies)
            failed = synced.error or not gone.done or any(reply.error for reply in (gone, *replies))
            if not failed and gone.value is None and self.path and mine is not None and mine.czxid == self.zxid:
                self.ahead, self.based, self.size = [], base is not None, queue.numChildren
                return True
        return await self._see(await self.session.read(GetChildren(self.folder, None)))

    async def _see(self, listed: Reply) -> bool:
        if isinstance(listed.error, NoNodeError) or not self.path:
            return False
        mine = self.path.rpartition("/")[2]
        children = listed.get()
        self.size, self.based = len(children), names.BASE in children
        if children == [mine]:
            self.ahead = []
            return True
        queue, sure = names.contenders(children)
        if mine not in queue:
            return False
        if sure:
            self.ahead = queue[: queue.index(mine)]
            return True
        replies = await self.session.ask(*(Exists(f"{self.folder}/{child}", None) for child in queue))
        found = [(reply.value.czxid, child) for reply, child in zip(replies, queue, strict=True) if reply.get()]
        self.ahead = [child for czxid, child in sorted(found) if czxid < self.zxid]
        return (self.zxid, mine) in found

    async def base(self) -> Base:
        """The base of the lock's tokens, if it had one when last seen."""
        return await base(self.session, self.name, self.folder) if self.based else Base("zookeeper", self.name)

    async def passed(self, driver: Driver, left: float) -> bool:
        """Wait until the node before this one is gone, or there is another reason to look; False after ``left``."""
        self._wake = self._last = wake = driver.signal()
        self._handed_over = None
        gone: Reply | None = None

        def woken(event: Any) -> None:
            nonlocal gone
            # Ask at once, on the connection's thread: after a release the node is gone, after another change it is not.
            gone = self.session.send(Exists(path, None)) if event.type == _CHANGED else None
            wake.set()

        last = self.blocking[-1]
        if self.limit is None:
            self.ahead = [last]  # many waiters in one process would each keep a list of the whole queue
        any_of_them = bool(self.limit and names.limit(last))  # any sharer that leaves may make room
        path = self.folder if any_of_them else f"{self.folder}/{last}"
        with self.session.watching(path, woken) as watch:
            [seen] = await self.session.ask(GetChildren(path, watch) if any_of_them else GetData(path, watch))
            if isinstance(seen.error, NoNodeError):
                return True
            if any_of_them and seen.error is None and not set(self.ahead) <= set(seen.value):
                return True
            seen.get()
            if not await wake.wait(None if left == inf else left):
                return False
            self._handed_over = gone if self.limit is None and _tells(last, *seen.value) else None
            return True

    @property
    def release(self) -> "Release | Delete":
        """The request that deletes this holder's node; in a long queue, one after which the next need not list it."""
        return Release(self.path) if self.size >= _LONG and self.limit is None else Delete(self.path, -1)

    def rouse(self) -> None:
        """Make a waiter look again."""
        if self._wake is not None:
            self._wake.set()

    def removed(self, event: Any) -> None:
        """The watch of its own node: report the loss if the node was deleted; a lost connection proves nothing yet."""
        if event.type == _DELETED and not self.ended:
            self._lost(self, "its node was deleted")

    def drop(self, then: Callable[[bool], None]) -> None:
        """Delete the node, without waiting; ``then`` is called with whether it is certainly gone."""
        self.ended = True
        session, folder = self.session, self.folder

        def deleted(reply: Reply) -> None:
            # When a session is over, the server deletes its nodes; nothing more can be done about them.
            gone = isinstance(reply.error, (NoNodeError, SessionExpiredError)) or session.over
            then(reply.error is None or gone)

        def found(listed: Reply) -> None:
            if synced.error:
                deleted(synced)
                return
            mine = [] if listed.error else [f"{folder}/{child}" for child in listed.value]
            mine = [path for path in mine if path.startswith(self._stem)]
            if not mine:
                deleted(listed)
            for path in mine[1:]:
                session.send(Delete(path, -1))
            for path in mine[:1]:
                session.send(Delete(path, -1), deleted)

        if self.path:
            session.send(Delete(self.path, -1), deleted)
        elif not self._stem:  # its creation was never requested, as after a MemoryError
            then(True)
        else:
            # The answer to the create was lost. After a sync the node is visible, or it was never created:
            # the leader accepts no request from a connection that this session has left.
            synced = session.send(Sync("/"))
            session.send(GetChildren(folder, None), found)


class Release(Transaction):  # type: ignore[misc]  # kazoo has no types
    """Deletes a holder's node, and shows its watchers that the holder released it.

    Their watch fires with a change. If a waiter left or died, it fires with a deletion. Kazoo's and Curator's locks and
    the Java recipe look again after either.
    """

    def __new__(cls, path: str) -> "Release":
        return super().__new__(cls, (SetData(path, b"", -1), Delete(path, -1)))  # type: ignore[no-any-return]


def settle(reply: Reply) -> Reply:
    """The reply to a release, with its error in ``error``, as for any other request."""
    if isinstance(reply.value, list):
        errors = [each for each in reply.value if isinstance(each, Exception)]
        reply.error = next((each for each in errors if not isinstance(each, RolledBackError)), None)
    return reply


def _tells(node: str, data: bytes, stat: Any) -> bool:
    """Whether a change of this node can only mean that its holder releases it.

    That is so if fencepost created the node, and it was not changed yet. Curator changes a holder's node to ask the
    holder to release.
    """
    return names.limit(node) is None and stat.version == 0 and _owner(data, node)[1] > 0


class Seen(NamedTuple):
    """A contender's node in the queue, and what it says about its holder; they sort in the order of the queue."""

    zxid: int
    path: str
    holder: str
    ttl: float


async def base(session: Session, name: str, folder: str) -> Base:
    """The base of a lock's tokens."""
    [reply] = await session.ask(GetData(f"{folder}/{names.BASE}", None))
    if isinstance(reply.error, NoNodeError):
        return Base("zookeeper", name)
    data, stat = reply.get()
    return Base.read("zookeeper", name, data, stat.mzxid)


async def raise_base(session: Session, name: str, folder: str, above: int, acl: Any) -> None:
    """Make every later token of a lock larger than ``above``."""
    path = f"{folder}/{names.BASE}"
    while True:
        synced, seen, found = await session.ask(Sync("/"), Exists(folder, None), GetData(path, None))
        synced.get()
        if (stat := seen.get()) is None:
            await session.make(folder)
            continue
        number = max(stat.czxid, stat.mzxid, stat.pzxid)
        if isinstance(found.error, NoNodeError):
            value = Base("zookeeper", name).raised(above, number)
            write = Create2(path, value, acl, 0)
        else:
            data, version = found.get()
            value = Base.read("zookeeper", name, data, version.mzxid).raised(above, number)
            write = SetData(path, value, version.version)
        if value is None:
            return
        [written] = await session.ask(write)
        if not isinstance(written.error, (NoNodeError, NodeExistsError, BadVersionError)):  # else another was faster
            written.get()
            return


async def changed(session: Session, driver: Driver, name: str, folder: str, token: int | None) -> None:
    """Return once the lock may have another holder than the one with ``token``."""
    wake = driver.signal()

    def woken(event: object) -> None:
        wake.set()

    queue = await contenders(session, folder)
    if queue and names.limit(queue[0].path):
        await driver.sleep(LOOK)
        return
    if ((await base(session, name, folder)).token(queue[0].zxid) if queue else None) != token:
        return
    if queue:
        [seen] = await session.ask(GetData(queue[0].path, woken))
        there = seen.error is None
    else:
        [seen] = await session.ask(GetChildren(folder, woken))
        if isinstance(seen.error, NoNodeError):
            [seen] = await session.ask(Exists(folder, woken))
        there = bool(seen.value)
    if there == bool(queue):
        await wake.wait()


async def nodes(session: Session, folder: str) -> list[str]:
    """The nodes of the holders and waiters of a lock, as the leader sees them."""
    listed = await session.read(GetChildren(folder, None))
    return [] if isinstance(listed.error, NoNodeError) else names.contenders(listed.get())[0]


async def contenders(session: Session, folder: str) -> list[Seen]:
    """The holders and waiters of a lock, in the order they came."""
    found = await nodes(session, folder)
    if not found:
        return []
    replies = await session.ask(*(GetData(f"{folder}/{node}", None) for node in found))
    return sorted(
        Seen(reply.value[1].czxid, f"{folder}/{node}", *_owner(reply.value[0], node))
        for reply, node in zip(replies, found, strict=True)
        if not isinstance(reply.error, NoNodeError) and reply.get()
    )


def _owner(data: bytes, node: str) -> tuple[str, float]:
    """A node's holder, and for how many seconds the node outlives its process: 0 if the node does not say.

    The holder of a node without data is the node's name.
    """
    if not data:
        return node, 0.0
    try:
        holder, lasts = data.decode().split()
        ttl = float(lasts)
        if not holders.ours(holders.split(holder)[0]) or not 0 <= ttl < inf:
            raise ValueError("somebody tells two words of itself")
        return check.holder(holder), ttl
    except ValueError:
        try:
            return holders.compose(names.identity(node), data.decode(errors="replace")), 0.0
        except ConfigError:
            return node, 0.0  # the data is not valid as part of a holder
