"""What to run: a seed, settings, actions, and how long. Data, so that it can be kept, shared and shrunk."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_args

from fencepost.errors import ConfigError

BACKENDS = ("redis", "redlock", "etcd", "zookeeper", "embedded")
FENCINGS = ("off", "writes", "enter", "noseq", "noholder", "nobarrier")
MAX_ACTIONS = 2000
MAX_UNTIL = 3600.0

ACTIONS: dict[str, dict[str, Any]] = {
    "acquire": {"timeout": None},
    "release": {},
    "read": {},
    "write": {},
    "rmw": {"work": 0.1},
    "work": {"rounds": 1, "writes": 1, "work": 0.1, "think": 0.1, "timeout": None},
    "cancel": {},
    "pause": {"for": 1.0},
    "resume": {},
    "kill": {},
    "restart": {"tail": 0.0},
    "cut": {"from": "all", "way": "both", "for": None},
    "heal": {"from": "all"},
    "skew": {"rate": 1.0},
    "jump": {"by": 0.0},
    "slow": {"by": 0.0},
    "failover": {"lag": 0.0, "offset": 0.0},
    "lose": {},
    "evict": {},
    "calm": {},
    "note": {"text": ""},
}
"""Every action, and its options with their defaults. ``who``: a client, the service, a machine of it, the resource."""

CLIENT_ACTIONS = {"acquire", "release", "read", "write", "rmw", "work", "cancel", "slow"}
SERVICE_ACTIONS = {"failover", "lose", "evict"}
HOLDER_ACTIONS = {"pause", "cut", "kill", "skew", "cancel"}
"""Can also happen to "holder": whichever client holds the lock at that moment, as the service sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that holds for a whole run. ConfigError for what cannot be meant."""

    backend: str = "redis"
    fence: str = "counter"
    """Tokens of Redis and Redlock: ``counter`` is INCR, ``hybrid`` is max(last + 1, server time in us)."""
    fencing: str = "enter"
    """off, writes (only writes are judged), enter (reads enter first); the others weaken the rule."""
    release: str = "conditional"
    """``getdel`` releases with GET, compare, DEL."""
    ttl: float = 5.0
    renew: bool = True
    heed: bool = False
    """Clients look at their lease before each access, and stop when it is over."""
    bump: bool = True
    """A client that is refused although its lease holds raises the issuer past the mark."""
    clients: tuple[str, ...] = ("A", "B", "C", "D")
    delay: tuple[float, float] = (0.002, 0.01)
    loss: float = 0.0
    duplicate: float = 0.0
    patience: float = 1.0
    """Seconds that a client waits for an answer."""
    retries: int = 2
    """How often a client repeats a write whose answer did not come."""
    go_on: bool = False
    """A client whose write got no answer reads again, and goes on under the same lease."""
    fickle: bool = False
    """A client's repeated write has another value under the same stamp: a broken program, which the guard refuses."""
    offsets: bool = False
    """Clocks start at random readings."""
    shuffle: bool = False
    """The seed decides what comes first at one instant."""

    def __post_init__(self) -> None:
        _one_of("backend", self.backend, BACKENDS)
        _one_of("fence", self.fence, ("counter", "hybrid"))
        _one_of("fencing", self.fencing, FENCINGS)
        _one_of("release", self.release, ("conditional", "getdel"))
        for name in ("ttl", "patience"):
            if not 0.05 <= _number(name, getattr(self, name)) <= 600:
                raise ConfigError(f"{name} lies between 0.05 and 600 seconds, not {getattr(self, name)}")
        for name in ("loss", "duplicate"):
            if not 0 <= _number(name, getattr(self, name)) < 1:
                raise ConfigError(f"{name} is a fraction from 0 up to 1, not {getattr(self, name)}")
        low, high = (_number("delay", each) for each in self.delay) if len(self.delay) == 2 else (1, 0)
        if not 0 <= low <= high <= 60:
            raise ConfigError(f"delay is [shortest, longest] in seconds, not {list(self.delay)}")
        if not 0 <= self.retries <= 20:
            raise ConfigError(f"retries lies between 0 and 20, not {self.retries}")
        names = self.clients
        if (
            not 1 <= len(names) <= 26
            or not all(isinstance(n, str) and n.isalpha() and n.isupper() for n in names)
            or len(set(names)) < len(names)
        ):
            raise ConfigError(f"clients are 1 to 26 different names in capital letters, not {list(names)}")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run, completely described."""

    seed: int = 1
    settings: Settings = field(default_factory=Settings)
    actions: tuple[dict[str, Any], ...] = ()
    until: float = 20.0

    def data(self) -> dict[str, Any]:
        """The scenario as JSON has it."""
        settings = {
            key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self.settings).items()
        }
        return {"seed": self.seed, "settings": settings, "actions": list(self.actions), "until": self.until}


def parse(data: Mapping[str, Any] | str | bytes) -> Scenario:
    """A scenario from JSON or what it says; ConfigError naming what is wrong.

    Keys that a scenario has for people (title, text, expect) are passed over.
    """
    if isinstance(data, (str, bytes)):
        try:
            data = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"a scenario is JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise ConfigError("a scenario is an object with seed, settings, actions and until")
    seed = data.get("seed", 1)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ConfigError(f"seed is an integer from 0 up to 2^63, not {seed!r}")
    until = _number("until", data.get("until", 20.0))
    if not 0 < until <= MAX_UNTIL:
        raise ConfigError(f"until lies between 0 and {MAX_UNTIL:g} seconds, not {until}")
    settings = _settings(data.get("settings", {}))
    actions = data.get("actions", [])
    if not isinstance(actions, list) or len(actions) > MAX_ACTIONS:
        raise ConfigError(f"actions is a list of at most {MAX_ACTIONS}")
    return Scenario(seed, settings, tuple(_action(each, settings) for each in actions), until)


def _settings(data: Any) -> Settings:
    if not isinstance(data, Mapping):
        raise ConfigError("settings is an object")
    known = {each.name: each for each in fields(Settings)}
    given: dict[str, Any] = {}
    for key, value in data.items():
        if key not in known:
            raise ConfigError(f"there is no setting {key!r}; there are {', '.join(known)}")
        kind = known[key].type
        if isinstance(value, list):
            value = tuple(value)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = _number(key, value)
        wanted = tuple if get_args(kind) else kind
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):  # type: ignore[arg-type]
            raise ConfigError(f"setting {key!r} cannot be {value!r}")
        given[key] = value
    return Settings(**given)


_NUMBERS = ("for", "rate", "by", "lag", "offset", "tail", "work", "think", "timeout", "rounds", "writes")


def _action(data: Any, settings: Settings) -> dict[str, Any]:
    if not isinstance(data, Mapping) or not isinstance(data.get("do"), str) or data["do"] not in ACTIONS:
        raise ConfigError(f"an action has at, who and do, one of {', '.join(ACTIONS)}; not {data!r}")
    do = data["do"]
    options = ACTIONS[do]
    for key in data:
        if key not in ("at", "who", "do") and key not in options:
            raise ConfigError(f"{do} has no option {key!r}; it takes {', '.join(options) or 'none'}")
    who = data.get("who")
    for key in ("who", "from", "way"):
        if not isinstance(data.get(key), str | None):
            raise ConfigError(f"{do}: {key} is a name, not {data[key]!r}")
    hurts = do in SERVICE_ACTIONS or who == "service"
    if hurts and do not in ("evict", "note") and not MACHINES[settings.backend]:
        raise ConfigError(f"{do}: the {settings.backend} store has no machine of its own; choose another backend")
    machines = {*settings.clients, "service", "resource", *MACHINES[settings.backend]}
    if do in ("calm", "note") or (who is None and do in SERVICE_ACTIONS | {"heal"}):
        pass
    elif do in SERVICE_ACTIONS:
        if who not in {"service", *MACHINES[settings.backend]}:
            raise ConfigError(f"{do} happens to the service, not to {who!r}")
    elif who == "holder" and do in HOLDER_ACTIONS:
        pass
    elif who not in (settings.clients if do in CLIENT_ACTIONS else machines):
        raise ConfigError(f"{do}: there is no {who!r} here; there are {', '.join(sorted(machines))}")
    # 8 and 8.0 are the same to JSON, and JavaScript writes both as 8: so they must give the same trace.
    numbers: dict[str, float] = {}
    for key in _NUMBERS:
        if data.get(key) is not None:
            given = _number(key, data[key])
            if abs(given) > 1e6:
                raise ConfigError(f"{do}: {key} is out of range")
            numbers[key] = int(given) if key in ("rounds", "writes") else given
    if do == "skew" and not 0.01 <= _number("rate", data.get("rate", 1.0)) <= 100:
        raise ConfigError("skew: rate lies between 0.01 and 100")
    if do in ("cut", "heal") and data.get("from", "all") not in {*machines, "all"}:
        raise ConfigError(f"{do}: from is 'all' or one of {', '.join(sorted(machines))}")
    if do == "cut" and data.get("way", "both") not in ("both", "out", "in"):
        raise ConfigError("cut: way is both, out or in")
    return {**data, **numbers, "at": _number("at", data.get("at", 0.0))}


MACHINES: dict[str, tuple[str, ...]] = {
    "redis": ("store",),
    "etcd": ("store",),
    "zookeeper": ("store",),
    "redlock": ("r1", "r2", "r3", "r4", "r5"),
    "embedded": (),
}
"""The machines of each backend's service."""


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is one of {', '.join(choices)}, not {value!r}")


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise ConfigError(f"{name} is a number, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(f"{name} is out of range") from None
