"""Signed tokens: a client without the key cannot make up a token.

A token is a guessable integer, and one client that sends 2^63-1 would lock everybody else out. With a secret
that issuers and guards share, each access of a lease carries a signature over (namespace, resource, token, seq,
holder), and a guard refuses what it cannot verify. Neither the body nor the action is covered: an attacker who sees
headers whose stamp no guard has admitted yet can use them for one access, even a write if they came with a read. So
send them over TLS only. Every client that locks has the key, and can sign what it likes: signatures keep out other
clients, not a client with the key that misbehaves.

    keys = Keys({"2026": secret})
    locks = fencepost.connect(url, keys=keys)           # its leases are signed
    guard = memory.MemoryGuard(policy=Policy(keys=keys))      # and nothing else is let in
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import ParamSpec, Self, TypeVar

from fencepost.errors import ConfigError
from fencepost.lease import BaseLease
from fencepost.rule import Stamp

__all__ = ["Keys"]

P = ParamSpec("P")
L = TypeVar("L", bound=BaseLease)

_ID = r"[A-Za-z0-9_-]{1,32}"
_SHORTEST = 16
_CONTEXT = b"fencepost token 2"


class Keys:
    """The secrets that sign and verify tokens, by id.

    ``current`` names the one that signs; by default the last. All of them verify. To rotate: add the new
    key where guards verify, then make it current where leases are signed, then remove the old one. Guards do not
    accept signatures of another ``namespace``. ConfigError for a key that is shorter than 16 bytes.
    """

    def __init__(self, keys: Mapping[str, bytes], *, namespace: str = "", current: str | None = None) -> None:
        if not keys:
            raise ConfigError("at least one key is needed to sign and verify tokens")
        for name, secret in keys.items():
            if not re.fullmatch(_ID, name):
                raise ConfigError(f"a key's id has 1 to 32 letters, digits, '-' and '_', not {name!r}")
            if not isinstance(secret, bytes) or len(secret) < _SHORTEST:
                raise ConfigError(f"key {name!r} must have at least {_SHORTEST} bytes; take secrets.token_bytes(32)")
        self._keys = dict(keys)
        self._current = current or list(keys)[-1]
        if self._current not in self._keys:
            raise ConfigError(f"there is no key {current!r} to sign with; there are {', '.join(self._keys)}")
        self._namespace = namespace

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The keys of a TOML file; ConfigError if it is not such a file.

        current = "2026"            # the one that signs; default: the last
        namespace = ""
        [keys]
        2026 = "<32 or more hexadecimal digits>"
        """
        import tomllib  # only here, as below: `import fencepost` loads this module, and few programs have keys

        try:
            with open(path, encoding="utf-8") as file:
                document = tomllib.loads(file.read())
        except (OSError, ValueError) as error:
            raise ConfigError(f"the file of keys {str(path)!r} cannot be read: {error}") from error
        texts = document.pop("keys", None)
        namespace, current = document.pop("namespace", ""), document.pop("current", None)
        if document or not isinstance(texts, dict) or not all(isinstance(each, str) for each in texts.values()):
            raise ConfigError(f"the file of keys {str(path)!r} has current, namespace, and a table [keys] of texts")
        if not isinstance(namespace, str) or not isinstance(current, str | None):
            raise ConfigError(f"current and namespace are texts in the file of keys {str(path)!r}")
        try:
            return cls({id: bytes.fromhex(text) for id, text in texts.items()}, namespace=namespace, current=current)
        except ValueError as error:  # of fromhex, whose text does not repeat the secret; ConfigError is one too
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"a key in {str(path)!r} is not hexadecimal; print one with: openssl rand -hex 32"
            ) from None

    def sign(self, resource: str, stamp: Stamp) -> str:
        """The signature for an access to ``resource``: it says that this holder was granted this token."""
        return f"{self._current}.{self._mac(self._keys[self._current], resource, *stamp)}"

    def verify(self, resource: str, stamp: Stamp, signature: str) -> bool:
        """Whether one of the keys made this signature; compares in constant time."""
        import hmac

        id, _, mac = signature.partition(".")
        secret = self._keys.get(id)
        if secret is None:
            return False
        expected = self._mac(secret, resource, *stamp)
        return hmac.compare_digest(expected.encode(), mac.encode())

    def signing(self, make: Callable[P, L]) -> Callable[P, L]:
        """A function that makes leases as ``make`` does, which sign their accesses."""

        def signed(*args: P.args, **kwargs: P.kwargs) -> L:
            lease = make(*args, **kwargs)
            lease._sign = self.sign
            return lease

        return signed

    def _mac(self, secret: bytes, *facts: str | int) -> str:
        import hmac

        # Put its length in front of each part, so that no two lists of parts become the same bytes.
        parts = [_CONTEXT, self._namespace.encode(), *(str(fact).encode() for fact in facts)]
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(secret, message, "sha256").hex()

    def __repr__(self) -> str:
        return f"<Keys {', '.join(self._keys)}; signs with {self._current}>"
