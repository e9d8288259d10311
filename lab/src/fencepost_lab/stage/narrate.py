"""What a worker's facts mean, in words: the same on a terminal and in the demo."""

from fencepost_lab.stage.job import PauseMode
from fencepost_lab.stage.worker import Fact


def tell(fact: Fact) -> str:
    """One fact as a line of text."""
    event = fact["event"]
    if event == "ready":
        return f"is about to {fact['step']}"
    if event == "metrics":
        return f"serves its metrics at {fact['url']}"
    if event == "acquired":
        return f"acquires the lock: token {fact['token']}, ttl {fact['ttl']:g} s"
    if event == "read":
        shown = repr(fact["value"][-60:]) if fact["value"] else "nothing yet"
        return f"reads {shown} {_token(fact)}"
    if event == "paused":
        how = "freezes: SIGSTOP" if fact["mode"] == PauseMode.STOP else "sleeps"
        return f"{how} for {fact['seconds']:g} s"
    if event == "resumed":
        return f"wakes after {fact['seconds']:.1f} s"
    if event == "sent":
        return f"sends {_what(fact)} {_token(fact)}"
    if event == "accepted":
        return f"writes {_what(fact)} {_token(fact)}: {_status(fact)}accepted"
    if event == "unanswered":
        return f"got no answer to {_what(fact)}, and reads again"
    if event == "heeded":
        return f"does not write: {fact['reason']}"
    if event == "refused":
        why = f": its token is {fact['got']}, the resource has seen {fact['seen']}" if "seen" in fact else ""
        return f"tries to {fact['step']}: {_status(fact)}refused as {fact['verdict']}{why}"
    if event == "released":
        return "releases the lock"
    if event == "lost":
        return f"has lost the lock: {fact['reason']}"
    return str(fact)


def _status(fact: Fact) -> str:
    return f"{fact['status']}, " if "status" in fact else ""


def _token(fact: Fact) -> str:
    return f"with token {fact['token']}" if fact["fenced"] else "without a token"


def _what(fact: Fact) -> str:
    return f"line {fact['number']} of {fact['of']}" if fact["value"].endswith("\n") else repr(fact["value"])
