"""Bearer tokens: who may call a server, for which users, and what they may do.

A token is shown once, when it is made. The file keeps its SHA-256, so that who reads the file cannot call the server.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from loom.core.checks import check_id
from loom.errors import NotFound, StoreError, UsageError
from loom.stores.base import lock_handle, unlock_handle

Right: TypeAlias = Literal["read", "write", "forget", "operate"]
RIGHTS: Final[tuple[Right, ...]] = get_args(Right)
PREFIX: Final = "loom_"
MOST: Final = 10_000
"""Tokens in one file, which is read again after each change."""
_TRIES: Final = 200
"""How often a change asks for the lock of the file, with a pause of 50 ms between two."""


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
        self._by_digest: dict[str, Token] = {}
        self._was_there = False

    @property
    def in_use(self) -> bool:
        """Whether callers need a token: from the first one on, also when all were revoked or the file is gone."""
        return bool(self.tokens()) or self._was_there

    def tokens(self) -> tuple[Token, ...]:
        """All tokens, as the file has them now."""
        try:
            state = self.path.stat()
        except FileNotFoundError:
            self._seen, self._tokens, self._by_digest = None, (), {}
            return ()
        except OSError as error:
            raise _unreadable(self.path, error) from error
        self._was_there = True
        seen = (state.st_mtime_ns, state.st_size, state.st_ino)
        if seen != self._seen:
            self._tokens = _read(self.path)
            self._by_digest = {token.digest: token for token in self._tokens}
            self._seen = seen
        return self._tokens

    def find(self, secret: str) -> Token | None:
        """The token with this secret.

        It is looked up by its digest: how long that takes may say how much of a digest is right, which is of no use to
        who cannot choose the digest of what they send. What was found is compared in constant time.
        """
        digest = _digest(secret)
        self.tokens()
        found = self._by_digest.get(digest)
        return found if found is not None and hmac.compare_digest(found.digest, digest) else None

    def holds(self, token: Token) -> bool:
        """Whether a token that was found earlier still counts, as it was then."""
        self.tokens()
        return self._by_digest.get(token.digest) == token

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
        secret = PREFIX + secrets.token_urlsafe(32)
        made = Token(
            name=name,
            digest=_digest(secret),
            namespace=namespace,
            users=named,
            rights=tuple(right for right in RIGHTS if right in rights),
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        with self._changing():
            held = self.tokens()
            if any(token.name == name for token in held):
                raise UsageError(f"there is a token {name!r} already; revoke it first, or choose another name")
            if len(held) >= MOST:
                raise UsageError(f"{self.path} has {MOST:,} tokens already; revoke some first")
            self._write((*held, made))
        return secret

    def revoke(self, name: str) -> None:
        """Remove a token; its bearer is refused from the next request on."""
        with self._changing():
            held = self.tokens()
            left = tuple(token for token in held if token.name != name)
            if len(left) == len(held):
                raise NotFound(f"there is no token {name!r} in {self.path}; `loom serve token list` names them")
            self._write(left)

    @contextmanager
    def _changing(self) -> Generator[None]:
        """One change at a time: of two that read the same file, the second would bring back what the first revoked."""
        place = self.path.with_name(f"{self.path.name}.lock")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(place, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._refused(error) from error
        try:
            for left in reversed(range(_TRIES)):
                try:
                    lock_handle(handle, exclusive=True)
                    break
                except (BlockingIOError, PermissionError) as error:
                    if not left:
                        raise UsageError(f"{self.path} is being changed by another process; try again") from error
                    time.sleep(0.05)
            yield
            unlock_handle(handle)
        finally:
            os.close(handle)

    def _write(self, tokens: tuple[Token, ...]) -> None:
        rows = [{key: value for key, value in asdict(token).items() if value is not None} for token in tokens]
        temporary = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}.new")
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"tokens": rows}, file, indent=2)
            temporary.replace(self.path)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> UsageError:
        return UsageError(f"{self.path} cannot be written: {error.strerror}; choose another --tokens")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _read(path: Path) -> tuple[Token, ...]:
    try:
        rows = cast("list[dict[str, Any]]", _list(json.loads(path.read_text(encoding="utf-8"))["tokens"], "tokens"))
        return tuple(_token(**row) for row in rows)
    except (OSError, ValueError, KeyError, TypeError) as error:  # a server without its tokens must not let anybody in
        raise _unreadable(path, error) from error


def _token(*, users: object = None, rights: object, **texts: object) -> Token:
    """A token as the file has it. What it may do is written out: a right is not taken from a field that is missing."""
    for name, value in texts.items():
        if not isinstance(value, str) or (name == "digest" and not value.isascii()):
            raise TypeError(f"{name} is not a text")
    names = None if users is None else _texts(users, "users")
    given = _texts(rights, "rights")
    if not set(given) <= set(RIGHTS):
        raise ValueError(f"the rights are {', '.join(RIGHTS)}")
    return Token(users=names, rights=cast("tuple[Right, ...]", given), **cast("dict[str, Any]", texts))


def _texts(value: object, name: str) -> tuple[str, ...]:
    found = _list(value, name)
    if not all(isinstance(one, str) for one in found):
        raise TypeError(f"{name} is not a list of texts")
    return tuple(cast("list[str]", found))


def _list(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{name} is not a list")
    return cast("list[object]", value)


def _unreadable(path: Path, error: Exception) -> StoreError:
    return StoreError(f"the tokens in {path} cannot be read ({error}); restore the file or make tokens anew")
