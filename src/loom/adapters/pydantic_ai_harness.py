"""The files of a user's memory as the store of pydantic-ai-harness' `Memory`: read, write, delete, list."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

from loom.adapters._shared import Owner, home_of_memory
from loom.core.clock import SystemClock
from loom.core.record import Provenance, WorkingBlock
from loom.core.scope import Scope
from loom.errors import MissingExtra, StoreConflict
from loom.memory._shared import FILE
from loom.memory.memory import Memory
from loom.protocols.tool import ToolError
from loom.tools.files import ROOT, FileTree, path_of

try:
    from pydantic_ai_harness.memory import (
        MemoryConflictError,
        MemoryFile,
        MemoryMutation,
        MemoryOperation,
        MemoryOperationConflictError,
    )
except ImportError as error:
    raise MissingExtra("loom.adapters.pydantic_ai_harness", "pydantic-ai-harness") from error

_RECEIPTS: Final = f"{FILE}receipts"
"""The block with the operations done last. It is not a path, so no tool shows it, and it goes with the user's files."""
_KEPT: Final = 256
"""Operations that are remembered; each takes about 200 characters of the block."""

Receipts: TypeAlias = dict[str, dict[str, Any]]


class LoomMemoryStore(Owner):
    """One user's files under /memories, the same that Loom's `memory_files` tool reads and writes.

    A harness path `main/MEMORY.md` is the file `/memories/main/MEMORY.md`. What Loom's files do not allow (500 files,
    100,000 characters each, two names that differ only in capital letters) raises ValueError.
    """

    def __init__(self, memory: str | Mapping[str, Any] | Memory, *, user_id: str) -> None:
        """Use a memory, which stays open, or what open_memory() takes, which is closed with this store."""
        self._home = home_of_memory(memory)
        self._scope = Scope(self._home.of.namespace, user_id)
        self._clock = SystemClock()

    async def read(self, path: str, *, max_chars: int) -> MemoryFile | None:
        """The file at a path, or its beginning; None where there is none."""
        if max_chars <= 0:
            raise ValueError(f"max_chars={max_chars}; give at least 1")
        block = (await self._tree()).files.get(_file(path))
        if block is None:
            return None
        done = await self._receipts()
        made_by = next((id for id, receipt in done.items() if receipt["version"] == _version(block)), None)
        return MemoryFile(
            content=block.text[:max_chars],
            version=_version(block) or "",
            operation_id=made_by,
            truncated=len(block.text) > max_chars,
        )

    async def get_operation(self, operation: MemoryOperation) -> MemoryMutation | None:
        """What an operation did when it was done; None where it was not."""
        return _replayed(await self._receipts(), operation)

    async def write(
        self, path: str, content: str, *, expected_version: str | None, operation: MemoryOperation | None = None
    ) -> MemoryMutation:
        """Write a file whose version is `expected_version`; None is for a new one."""
        return await self._change(path, content, expected_version, operation)

    async def delete(
        self, path: str, *, expected_version: str | None, operation: MemoryOperation | None = None
    ) -> MemoryMutation:
        """Delete a file whose version is `expected_version`."""
        return await self._change(path, None, expected_version, operation)

    async def list_paths(self, prefix: str = "", *, limit: int) -> list[str]:
        """The paths that start with a prefix, sorted."""
        if limit <= 0:
            raise ValueError(f"limit={limit}; give at least 1")
        start = f"{ROOT}/{prefix}"
        found = sorted(name for name in (await self._tree()).files if name.startswith(start))
        return [name.removeprefix(f"{ROOT}/") for name in found[:limit]]

    async def _change(
        self, path: str, content: str | None, expected: str | None, operation: MemoryOperation | None
    ) -> MemoryMutation:
        name = _file(path)
        while True:  # each conflict means that another writer made progress
            tree = await self._tree()
            receipts = tree.files.pop("receipts", None)
            done: Receipts = json.loads(receipts.text) if receipts else {}
            if operation is not None and (before := _replayed(done, operation)) is not None:
                return before
            old = tree.files.get(name)
            if _version(old) != expected:
                raise MemoryConflictError(f"memory path {path!r} has another version now; read it again")
            try:
                new = None if content is None else tree.block(name, content)
            except ToolError as error:
                raise ValueError(str(error)) from error
            made = MemoryMutation(version=_version(new), replayed=False, existed=old is not None)
            put = [self._receipt(receipts, done, operation, made), *([new] if new else [])]
            gone = [old.id] if old is not None and new is None else []
            write = partial(_write, scope=self._scope, put=put, gone=gone)
            with suppress(StoreConflict):
                await self._home.call(write)
                return made

    def _receipt(
        self, held: WorkingBlock | None, done: Receipts, operation: MemoryOperation | None, made: MemoryMutation
    ) -> WorkingBlock:
        """The block of operations with this one added.

        Every change writes it, in one step with the file: so of two changes at once one comes second, and reads again.
        """
        said = {"version": made.version, "existed": made.existed}
        new = [] if operation is None else [(operation.id, {**said, "fingerprint": operation.fingerprint})]
        newest = [*done.items(), *new][-_KEPT:]
        return WorkingBlock(
            name=_RECEIPTS,
            text=json.dumps(dict(newest)),
            updated_at=self._clock.now(),
            provenance=Provenance("assistant"),
            version=held.version + 1 if held else 1,
        )

    async def _tree(self) -> FileTree:
        return await self._home.call(lambda memory: FileTree.of(memory, self._scope.user_id, self._clock))

    async def _receipts(self) -> Receipts:
        found = await self._home.call(lambda memory: memory.store.get(self._scope, f"block:{_RECEIPTS}"))
        return json.loads(found.text) if isinstance(found, WorkingBlock) else {}


async def _write(memory: Memory, *, scope: Scope, put: Sequence[WorkingBlock], gone: Sequence[str]) -> None:
    await memory.store.write(scope, put=put, delete=gone)


def _file(path: str) -> str:
    try:
        return path_of(f"{ROOT}/{path}")
    except ToolError as error:
        raise ValueError(str(error)) from error


def _version(block: WorkingBlock | None) -> str | None:
    """What tells one text of a file from all others: a file that is deleted and made again counts from 1 anew."""
    return None if block is None else f"{block.version}-{block.updated_at.isoformat()}"


def _replayed(done: Receipts, operation: MemoryOperation) -> MemoryMutation | None:
    if (receipt := done.get(operation.id)) is None:
        return None
    if receipt["fingerprint"] != operation.fingerprint:
        raise MemoryOperationConflictError(f"operation {operation.id!r} was done with other arguments")
    return MemoryMutation(version=receipt["version"], replayed=True, existed=receipt["existed"])
