"""Bearer tokens: who may call a server, for which users, and what they may do.

A token is shown once, when it is made. The file keeps its SHA-256, so that who reads the file cannot call the server.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from loom.core.checks import check_id
from loom.errors import NotFound, StoreError, UsageError

Right: TypeAlias = Literal["read", "write", "forget", "operate"]
RIGHTS: Final[tuple[Right, ...]] = get_args(Right)
PREFIX: Final = "loom_"
MOST: Final = 10_000
"""Tokens in one file: each request compares its own with all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What the bearer of a token may do. `users` None: any user of the namespace."""

    name: str
    digest: str
    namespace: str = "default"
    users: tuple[str, ...] | None = None
    rights: tuple[Right, ...] = RIGHTS
    made_at: str = ""

    def may(self, right: Right, user_id: str | None = None) -> bool:
        """Whether it has the right, for this user if one is given."""
        return right in self.rights and (user_id is None or self.users is None or user_id in self.users)


ANYBODY: Final = Token(name="", digest="")
"""The caller of a server on this machine that has no tokens: may do everything, in every namespace it names."""


class TokenFile:
    """The tokens of a server. A change of the file counts from the next request on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._tokens: tuple[Token, ...] = ()

    def tokens(self) -> tuple[Token, ...]:
        """All tokens, as the file has them now."""
        try:
            state = self.path.stat()
        except FileNotFoundError:
            self._seen, self._tokens = None, ()
            return ()
        seen = (state.st_mtime_ns, state.st_size, state.st_ino)
        if seen != self._seen:
            self._tokens, self._seen = _read(self.path), seen
        return self._tokens

    def find(self, secret: str) -> Token | None:
        """The token with this secret. All are compared, so the time says nothing about which matched."""
        digest = _digest(secret)
        found = [token for token in self.tokens() if hmac.compare_digest(token.digest, digest)]
        return found[0] if found else None

    def add(
        self,
        name: str,
        *,
        namespace: str = "default",
        users: Iterable[str] | None = None,
        rights: Collection[Right] = RIGHTS[:-1],
    ) -> str:
        """Make a token, unless told otherwise one that may not operate; returns its secret, which is not kept."""
        check_id(name, "the name of a token")
        check_id(namespace, "the namespace of a token")
        named = None if users is None else tuple(dict.fromkeys(users))
        for user in named or ():
            check_id(user, "a user of a token")
        unknown = [right for right in rights if right not in RIGHTS]
        if unknown or not rights:
            raise UsageError(f"{', '.join(unknown) or 'no right'} cannot be given; the rights are {', '.join(RIGHTS)}")
        held = self.tokens()
        if any(token.name == name for token in held):
            raise UsageError(f"there is a token {name!r} already; revoke it first, or choose another name")
        if len(held) >= MOST:
            raise UsageError(f"{self.path} has {MOST:,} tokens already; revoke some first")
        secret = PREFIX + secrets.token_urlsafe(32)
        made = Token(
            name=name,
            digest=_digest(secret),
            namespace=namespace,
            users=named,
            rights=tuple(right for right in RIGHTS if right in rights),
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._write((*held, made))
        return secret

    def revoke(self, name: str) -> None:
        """Remove a token; its bearer is refused from the next request on."""
        held = self.tokens()
        left = tuple(token for token in held if token.name != name)
        if len(left) == len(held):
            raise NotFound(f"there is no token {name!r} in {self.path}; `loom serve token list` names them")
        self._write(left)

    def _write(self, tokens: tuple[Token, ...]) -> None:
        rows = [{key: value for key, value in asdict(token).items() if value is not None} for token in tokens]
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"tokens": rows}, file, indent=2)
            temporary.replace(self.path)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}; choose another --tokens") from error


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _read(path: Path) -> tuple[Token, ...]:
    try:
        rows = cast("list[dict[str, Any]]", json.loads(path.read_text(encoding="utf-8"))["tokens"])
        made = (Token(**row) for row in rows)
        return tuple(
            replace(token, users=None if token.users is None else tuple(token.users), rights=tuple(token.rights))
            for token in made
        )
    except (OSError, ValueError, KeyError, TypeError) as error:  # a server without its tokens must not let anybody in
        raise StoreError(
            f"the tokens in {path} cannot be read ({error}); restore the file or make tokens anew"
        ) from error
