"""``fencepost fleet``: who owns which partitions."""

import json
from typing import Annotated, Any

import typer

from fencepost.cli.loader import Loader
from fencepost.cli.options import Backend, Json, store
from fencepost.cli.text import say

app = typer.Typer(cls=Loader, add_completion=False, no_args_is_help=True)


@app.callback()
def fleet() -> None:
    """Look at the workers that share partitions."""


@app.command()
def show(
    group: Annotated[str, typer.Argument(help="The group.")],
    backend: Backend = None,
    as_json: Json = False,
) -> None:
    """Show a group: its members and what each owns, then each partition: owner, token, ttl left, or unowned."""
    import fencepost
    from fencepost import check
    from fencepost.fleet import view
    from fencepost.fleet.plan import prefix

    check.name(group, "group")
    with fencepost.connect(store(backend)) as locks:
        found = told(view(group, locks.list(prefix(group))))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    say(f"{group}: {len(found['members'])} members, {found['count']} partitions, {len(found['unowned'])} unowned")
    for member in found["members"]:
        owns = " ".join(map(str, member["owns"])) or "nothing"
        say(f"  {member['name']}  {member['remaining']:.1f} s left, owns {len(member['owns'])}: {owns}")
    for each in found["partitions"]:
        if each["token"] is None:
            say(f"{each['partition']:5}  unowned")
        else:
            owner = each["member"] or f"no member, holder {each['holder']}"
            waiting = f", {each['waiting']} waiting" if each["waiting"] else ""
            say(f"{each['partition']:5}  {owner}  token {each['token']}, {each['remaining']:.1f} s left{waiting}")


def told(found: Any) -> dict[str, Any]:
    """A group as JSON has it."""
    from fencepost import check

    members = [
        {
            "name": member.name,
            "remaining": round(member.status.remaining, 3),
            "owns": [number for number in found.owned[member.mark] if number < found.count],
        }
        for member in sorted(found.members.values(), key=lambda each: each.name)
    ]
    partitions: list[dict[str, Any]] = []
    for number in range(found.count):
        owner, status = found.owner(number), found.held.get(number)
        partitions.append(
            {
                "partition": number,
                "member": owner.name if owner else None,
                "token": check.json_number(status.token) if status else None,
                "holder": status.holder if status else None,
                "remaining": round(status.remaining, 3) if status else None,
                "waiting": len(status.waiters) if status else 0,
            }
        )
    return {
        "group": found.group,
        "count": found.count,
        "members": members,
        "unowned": found.unowned,
        "partitions": partitions,
    }
