"""Every call of the Python API has a route, or a reason why it has none."""

from __future__ import annotations

from typing import Any

import pytest

from loom.knowledge.graph import GraphKnowledgeBase
from loom.knowledge.in_memory import InMemoryKnowledgeBase
from loom.knowledge.vector import VectorKnowledgeBase
from loom.memory.memory import Memory
from loom.protocols.checkpoint_store import CheckpointStore
from loom.protocols.memory_store import KeepsJobs
from loom.server.http.app import describe

U = "/v1/users/{user}"
S = f"{U}/sessions"
K = "/v1/knowledge"

ROUTES: dict[type, dict[str, tuple[str, str]]] = {
    Memory: {
        "remember": ("post", f"{U}/memories"),
        "upsert": ("post", f"{U}/memories/upsert"),
        "list": ("get", f"{U}/memories"),
        "get": ("get", f"{U}/memories/{{id}}"),
        "update": ("patch", f"{U}/memories/{{id}}"),
        "mark": ("patch", f"{U}/memories/{{id}}"),
        "promote": ("post", f"{U}/memories/{{id}}/promote"),
        "explain": ("get", f"{U}/memories/{{id}}/explain"),
        "forget": ("delete", f"{U}/memories/{{id}}"),
        "recall": ("post", f"{U}/recall"),
        "timeline": ("get", f"{U}/timeline"),
        "facts": ("get", f"{U}/facts"),
        "assert_fact": ("post", f"{U}/facts"),
        "blocks": ("get", f"{U}/blocks"),
        "set_block": ("put", f"{U}/blocks/{{name}}"),
        "block_history": ("get", f"{U}/blocks/{{name}}/history"),
        "instruct": ("post", f"{U}/standing"),
        "standing": ("get", f"{U}/standing"),
        "standing_history": ("get", f"{U}/standing/history"),
        "confirm": ("post", f"{U}/standing/{{id}}/confirm"),
        "reject": ("delete", f"{U}/standing/{{id}}"),
        "profile": ("get", f"{U}/profile"),
        "stats": ("get", f"{U}/stats"),
        "export": ("get", f"{U}/export"),
        "end_session": ("post", f"{S}/{{session}}/end"),
        "metabolize": ("post", f"{U}/jobs/run"),
    },
    CheckpointStore: {
        "sessions": ("get", S),
        "load": ("get", f"{S}/{{session}}"),
        "history": ("get", f"{S}/{{session}}"),
        "recorded": ("get", f"{S}/{{session}}/requests"),
        "list": ("get", f"{S}/{{session}}/checkpoints"),
        "delete": ("delete", f"{S}/{{session}}/checkpoints/{{id}}"),
        "forget": ("delete", f"{S}/{{session}}"),
    },
    KeepsJobs: {
        "pending": ("get", f"{U}/jobs"),
        "dead_letters": ("get", f"{U}/jobs"),
        "write": ("post", f"{U}/jobs/{{id}}/retry"),
    },
    InMemoryKnowledgeBase: {
        "add": ("post", f"{K}/documents"),
        "add_item": ("post", f"{K}/documents"),
        "get_by_id": ("get", f"{K}/documents/{{id}}"),
        "remove": ("delete", f"{K}/documents/{{id}}"),
        "search": ("post", f"{K}/search"),
        "query": ("post", f"{K}/search"),
    },
    VectorKnowledgeBase: {"search": ("post", f"{K}/search")},
    GraphKnowledgeBase: {"search_graph": ("post", f"{K}/search_graph")},
}
_PROGRAM = "of the program that owns the memory, not of a caller"
_WRITES = "a conversation is written by the session that has it; over HTTP it can be rewound, forked and compacted"
_WORKERS = "of the worker that does jobs; POST jobs/run does those that are due"
NONE: dict[type, dict[str, str]] = {
    Memory: {
        "open": _PROGRAM,
        "aclose": _PROGRAM,
        "view": _PROGRAM,
        "worker": _PROGRAM,
        "answering": _PROGRAM,
        "overview": "of a session, for one turn; GET profile and GET timeline have what is in it",
        "upkeep": "what a turn does in passing; POST jobs/run does all of it",
        "reembed": "of all users at once, for the command line: loom memory reembed",
        "import_": "lines can say that they are trusted, which no caller may; for the command line: loom memory import",
        "epoch": "a number of the store, which says how many users came before; events tell that something was forgotten",
        "bill": "of the process: what its model cost",
        "usage": "of the process: what its model used",
        "learned": "of the process: what the last reading by its model found",
        "has_reader": _PROGRAM,
        "waits_to_learn": _PROGRAM,
        "embedder_note": _PROGRAM,
    },
    CheckpointStore: {"aclose": _PROGRAM, "save": _WRITES, "append": _WRITES},
    KeepsJobs: {"lease": _WORKERS, "finish": _WORKERS, "fail": _WORKERS, "epoch": "as for a memory"},
    InMemoryKnowledgeBase: {"corpus": _PROGRAM},
    VectorKnowledgeBase: {
        "add_noted": "for a graph over it",
        "search_weighted": "for a graph over it",
        "shared": _PROGRAM,
        "flush": "documents that are added over HTTP do not wait",
    },
    GraphKnowledgeBase: {"add_facts": "facts of a user; over HTTP they are in the memory", "relations": _PROGRAM},
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("kind", ROUTES, ids=lambda kind: kind.__name__)
def test_every_call_has_a_route_or_a_reason(kind: type[Any]) -> None:
    described = describe()["paths"]
    missing = {name for name, (method, path) in ROUTES[kind].items() if method not in described.get(path, {})}
    assert not missing, "these routes are not there"
    general = kind if kind not in {VectorKnowledgeBase, GraphKnowledgeBase} else InMemoryKnowledgeBase
    known = {*ROUTES[kind], *ROUTES[general], *NONE[kind], *NONE[general], *NONE[VectorKnowledgeBase]}
    assert public(kind) - known == set(), "a new call needs a route, or a reason why it has none"
    gone = {*ROUTES[kind], *NONE[kind]} - public(kind)
    assert not gone, "these calls are not there any more"
    assert not ROUTES[kind].keys() & NONE[kind].keys()


def test_every_route_is_a_call_of_python_or_belongs_to_the_server() -> None:
    own = {
        *("/healthz", "/readyz", "/metrics", U, f"{U}/events", f"{S}/{{session}}/events"),
        *(f"{S}/{{session}}/{verb}" for verb in ("restore", "fork", "compact", "undo")),  # of a Session
        f"{S}/{{session}}/requests/{{id}}/body",
    }
    called = {path for routes in ROUTES.values() for _, path in routes.values()}
    assert set(describe()["paths"]) == own | called
