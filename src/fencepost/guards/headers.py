"""A stamp in an HTTP request's headers, and the answer to one that is refused; no framework needed."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fencepost import check
from fencepost.errors import ConfigError, Refused
from fencepost.events import Action, Hook
from fencepost.guards.judgement import Judgement
from fencepost.guards.policy import Policy, current_policy
from fencepost.lease import Access, entering_stamp, stamp
from fencepost.rule import Stamp, Verdict

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that only read: with a token they enter, without one they pass."""

_NAMES = ("X-Fence-Token", "X-Fence-Seq", "X-Fence-Holder", "X-Fence-Signature")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
# "stale fencing token" is the wording other implementations of this service use: keep it.
_REFUSALS = {
    Verdict.STALE: "stale fencing token",
    Verdict.LATE: "late: a newer access of the same lease was here already; read again before you go on",
    Verdict.CLASH: "token clash: another holder came with the same token",
    Verdict.REPLAY: "this stamp was used before, for another write or an unknown one: each takes its own X-Fence-Seq",
    Verdict.MISSING: "missing fencing token: send X-Fence-Token",
    Verdict.FORGED: "forged fencing token: X-Fence-Signature is missing or wrong",
    Verdict.LEAP: "fencing token too far above the last one",
}
_STATUS = {Verdict.MISSING: 428, Verdict.FORGED: 403}


class Answer(NamedTuple):
    """What to answer instead of carrying a request out."""

    status: int
    headers: dict[str, str]
    body: bytes


def access(resource: str, values: Callable[[str], Sequence[str]], *, reads: bool) -> Access | None:
    """The access that a request's headers describe; ``values`` returns all headers of one name, decoded as latin-1.

    Without X-Fence-Seq it is the one write of a bare token, or, if the request only reads, an enter with a seq of 0.
    None without a token; ConfigError if a header is malformed, or the stamp is not valid for this kind of access.
    """
    token, seq, holder, signature = (_single(values, name) for name in _NAMES)
    if token is None:
        if seq is not None or holder is not None:
            raise ConfigError("X-Fence-Seq and X-Fence-Holder mean nothing without X-Fence-Token")
        return None
    try:
        owner = (holder or "").encode("latin-1").decode()
    except UnicodeDecodeError:
        raise ConfigError("X-Fence-Holder must be UTF-8") from None
    number = check.token(_number(token, "X-Fence-Token"))
    offer = Stamp(number, int(not reads) if seq is None else _number(seq, "X-Fence-Seq"), check.holder(owner))
    _ = entering_stamp(offer) if reads else stamp(offer)
    return Access(resource, offer, signature or "")


class Sent(NamedTuple):
    """What the middleware found in a request."""

    access: Access | None
    action: Action
    judged: bool
    """Whether the access still has to be judged against a mark."""


def judge(
    resource: str,
    values: Callable[[str], Sequence[str]],
    method: str,
    hooks: Iterable[Hook],
    policy: Policy | None,
) -> Sent:
    """Judge a request as far as no mark is needed. Raises MissingToken and ForgedToken where the policy refuses those.

    ConfigError for a malformed request if the policy demands a token, or if it refuses and the request has fence
    headers. Otherwise a malformed request counts as one without a token.
    """
    action: Action = "enter" if method in SAFE else "write"
    stance = (policy or current_policy()).stance(resource)
    try:
        found = access(resource, values, reads=action == "enter")
        if found is None and action == "enter":
            return Sent(None, action, judged=False)
        check.name(resource, "resource")
    except ConfigError:
        if stance.demands or (stance.refuses and any(values(name) for name in _NAMES)):
            raise
        found = None
    judgement = Judgement("http", _tellable(resource), found, action, hooks, policy)
    return Sent(found, action, judgement.judged and found is not None)


def _tellable(resource: str) -> str:
    """The resource for hooks: escaped and shortened if it is not a valid name."""
    try:
        return check.name(resource, "resource")
    except ConfigError:
        return ascii(resource)[: check.MAX_NAME]


def refusal(error: Refused) -> Answer:
    """The answer to a refused access: 428 without a token, 403 for a forged one, else 409; a header says why."""
    verdict, mark, got = error.verdict, error.mark, error.offer
    body: dict[str, Any] = {"error": _REFUSALS[verdict]}
    if mark and got:
        body |= {"seen": check.json_number(mark.token), "got": check.json_number(got.token)}
        if verdict in (Verdict.LATE, Verdict.REPLAY):
            body |= {"seen_seq": check.json_number(mark.seq), "got_seq": check.json_number(got.seq)}
    if verdict is not Verdict.STALE:
        body["verdict"] = verdict
    headers = {"X-Fence-Verdict": verdict.value}
    if mark is not None:
        headers["X-Fence-Mark"] = str(mark.token)
    return Answer(_STATUS.get(verdict, 409), headers, _json(body))


def malformed(error: ConfigError) -> Answer:
    """The answer to malformed headers, or to an invalid name of a resource."""
    return Answer(400, {}, _json({"error": str(error)}))


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _single(values: Callable[[str], Sequence[str]], name: str) -> str | None:
    found = values(name)
    if len(found) > 1:
        raise ConfigError(f"{name} is given {len(found)} times")
    return found[0] if found else None


def _number(text: str, name: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ConfigError(f"{name} is a decimal integer of at most 19 digits, not {text[:40]!r}")
    return int(text)
