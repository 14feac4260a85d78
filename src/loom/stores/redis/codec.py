"""Records, keys, vectors and jobs as bytes, and back."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from loom.core.codec import record_from_dict, record_to_dict
from loom.core.record import Record
from loom.core.scope import Scope
from loom.protocols.embedder import Vector
from loom.protocols.jobs import DeadLetter, Job
from loom.stores.damage import reading, unreadable
from loom.stores.user_records import HeldJob, job_from_dict, job_to_dict, payload_error

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def micros(at: datetime) -> int:
    """A time as whole microseconds."""
    return (at - _EPOCH) // _MICROSECOND


def id_bytes(id: str) -> bytes:
    """An id as a field; one that cannot be stored is found nowhere."""
    return id.encode(errors="surrogatepass")


def pack_record(record: Record) -> bytes:
    """A record; `kind` comes first, where the script that forgets a user counts it."""
    return _to_json(record_to_dict(record)).encode()


def unpack_record(data: bytes) -> Record:
    """The record of pack_record()."""
    try:
        return record_from_dict(json.loads(data))
    except Exception as error:
        raise unreadable("a record", error) from error


def pack_keys(keys: Mapping[str, str]) -> bytes:
    """The keys of a record, by kind."""
    return _to_json(dict(keys)).encode()


def unpack_keys(data: bytes | None) -> dict[str, str]:
    """The keys of pack_keys(); none where there is nothing."""
    if data is None:
        return {}
    with reading("the keys of a record"):
        return {str(kind): str(text) for kind, text in json.loads(data).items()}


def pack_vector(vector: Vector) -> bytes:
    """A vector, exactly: 8 bytes for each number, the lowest first."""
    return little_endian(array("d", vector)).tobytes()


def unpack_vector(data: bytes) -> Vector:
    """The vector of pack_vector(), in a form that numpy takes as it is."""
    try:
        return little_endian(array("d", data))
    except ValueError as error:
        raise unreadable("a vector", error) from error


def little_endian(numbers: array[float]) -> array[float]:
    """Numbers with their lowest byte first, on any machine."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def pack_job(held: HeldJob) -> bytes:
    """An open job."""
    until = None if held.until is None else held.until.isoformat()
    return _dumped(held.job, {"token": held.token, "until": until})


def unpack_job(data: bytes) -> HeldJob:
    """The job of pack_job()."""
    with reading("a job"):
        found = json.loads(data)
        until = None if found["until"] is None else datetime.fromisoformat(found["until"])
        return HeldJob(job_from_dict(found), found["token"], until)


def pack_letter(letter: DeadLetter) -> bytes:
    """A job that was given up."""
    return _dumped(letter.job, {"reason": letter.reason, "dead_at": letter.at.isoformat()})


def unpack_letter(data: bytes) -> DeadLetter:
    """The dead letter of pack_letter()."""
    with reading("a job that was given up"):
        found = json.loads(data)
        return DeadLetter(job=job_from_dict(found), reason=found["reason"], at=datetime.fromisoformat(found["dead_at"]))


def pack_owner(scope: Scope) -> bytes:
    """The namespace and the id of a user."""
    return _to_json([scope.namespace, scope.user_id]).encode()


def unpack_owner(data: bytes) -> Scope:
    """The scope of pack_owner()."""
    with reading("the name of a user"):
        return Scope(*json.loads(data))


@dataclass(frozen=True, slots=True)
class Binding:
    """The embedder of a store's vectors; `stamp` tells one binding from a later one to the same embedder."""

    identity: str
    dimension: int
    stamp: str

    def packed(self) -> bytes:
        """As bytes."""
        return _to_json([self.identity, self.dimension, self.stamp]).encode()

    @staticmethod
    def unpacked(data: bytes | None) -> Binding | None:
        """The binding of packed()."""
        with reading("the embedder of the store"):
            return None if data is None else Binding(*json.loads(data))


def _dumped(job: Job, more: Mapping[str, Any]) -> bytes:
    try:
        return _to_json({**job_to_dict(job), **more}).encode()
    except (TypeError, ValueError) as error:
        raise payload_error(job, error) from error
