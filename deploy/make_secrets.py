"""Make the secrets of the deployment in an empty folder, once; what is there stays as it is: make_secrets.py FOLDER

clients.toml    who may use the resource service: hashes only, for its --clients
worker          the token of the workers, the leader and the report
prometheus      the token that may read /metrics, and no value
postgres        the password of the database
pgpass          the same, as libpq reads it
grafana         the password of Grafana's admin
"""

import hashlib
import secrets
import sys
from pathlib import Path

PREFIXES = {"worker": "counting/", "prometheus": "nothing/"}


def main(folder: Path) -> None:
    """Write the files; `postgres`, `prometheus` and `grafana` are read by the users of other images."""
    if (folder / "clients.toml").exists():
        return
    made = {name: secrets.token_urlsafe(32) for name in ("worker", "prometheus", "postgres", "grafana")}
    files = made | {"pgpass": f"*:*:*:*:{made['postgres']}"}
    files["clients.toml"] = "\n".join(
        f'[[client]]\nname = "{name}"\nsha256 = "{hashlib.sha256(made[name].encode()).hexdigest()}"\n'
        f'prefixes = ["{prefix}"]\n'
        for name, prefix in PREFIXES.items()
    )
    for name, text in files.items():  # clients.toml is the last: if it is there, all are
        path = folder / name
        path.touch(0o600)
        path.write_text(text + "\n", "utf-8")
        path.chmod(0o644 if name in ("postgres", "prometheus", "grafana") else 0o600)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if not Path(sys.argv[1]).is_dir():
        sys.exit(f"make_secrets.py: there is no folder {sys.argv[1]}; make it first: mkdir -m 700 {sys.argv[1]}")
    main(Path(sys.argv[1]))
