"""Opening a memory: a URL, a mapping or an instance becomes stores, an embedder and an extractor that fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loom.core.clock import Clock
from loom.engine.places import PLACE_OPTIONS, Opening, place_in, store_at
from loom.engine.registry import Registry
from loom.errors import UsageError
from loom.memory.config import MemoryConfig
from loom.memory.extract.rules import RuleExtractor
from loom.memory.learning import FACTS, Facts
from loom.memory.memory import Memory
from loom.memory.metabolism import Store
from loom.protocols.embedder import Embedder
from loom.protocols.extractor import Extractor
from loom.protocols.reranker import Reranker
from loom.providers.embedding.auto import BUILT_IN, OpensEmbedder, local_embedder, pick_embedder
from loom.stores.sqlite.connection import Durability

EMBEDDERS: Registry[OpensEmbedder] = Registry("loom.embedders", BUILT_IN)

_OPTIONS = ("namespace", "embedder", "facts", "with_facts", "config", "durability")
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("namespace", "embedder", "config", "reranker")),
    "facts": "auto",
    "with_facts": True,
    "durability": "full",
}


def open_memory(
    where: str | Mapping[str, Any] | Memory | Store = "inmemory",
    *,
    namespace: str | None = None,
    embedder: str | Embedder | None = None,
    facts: Facts = "auto",
    with_facts: bool = True,
    extractor: Extractor | None = None,
    config: MemoryConfig | None = None,
    reranker: Reranker | None = None,
    clock: Clock | None = None,
    durability: Durability = "full",
) -> Memory:
    """A memory on the store that `where` names. Nothing is read or written before the first call.

    Args:
        where: `inmemory`, `sqlite:PATH`, `chroma:FOLDER`, `qdrant:FOLDER`, a URL (`postgres://...`, `redis://...`,
            `qdrant+http://HOST:6333?truth=postgres://...`, the same for Chroma), a store, a memory, or a mapping with
            `backend`, `path` or `url` and any of the options below, which count more than those beside it. The
            backend `composite` puts stores together: `truth` keeps everything that no other part does, `vectors` is
            a vector engine for what the truth keeps, and `layers` gives layers stores of their own, such as
            `{"l2": "redis://..."}`; see CompositeMemory. As a URL: `composite:?truth=...&vectors=...&l2=...`.
            For Redis, `durable` refuses a server that may lose what it acknowledged, and `ttl` says how long episodes
            stay: seconds, `"7d"`, or `{"l1": "1h", "rest": "30d"}`. In its URL: `?durable=true&ttl=30d&ttl_l1=1h`.
            Of a memory that is open, another namespace, configuration or way to find facts gives a view: it shares
            the store, and closing it leaves the store open.
        namespace: keeps applications on one store apart; `default` if not given.
        embedder: a name (`wordllama`, `minilm`, `openai`, `hash`, or one that an installed package adds) or an
            embedder. If not given: one on this machine, which is the one that the store was made with if that is
            installed. Nothing else sends texts anywhere.
        facts: how facts are found in what is remembered: `rules` by plain rules, when jobs are done; `model` by these
            and by a model in the background; None not at all. `auto` is `model` where an agent with a model uses the
            memory or an `extractor` is given, else `rules`.
        with_facts: False is `facts=None`.
        extractor: who finds facts in the background, such as LlmExtractor(model); see `facts`.
        config: the four layers.
        reranker: orders the best hits once more; none if not given.
        clock: what time it is.
        durability: of SQLite: `full` survives a power cut, `fast` may lose the last writes to one.
    """
    if isinstance(where, Memory):
        if embedder is not None or reranker is not None:
            raise UsageError("a memory that is open keeps its embedder and its reranker; give them when it is opened")
        changes = namespace, facts_mode(facts, extractor, with_facts=with_facts), extractor, config
        if changes == (None, "auto", None, None):
            return where
        return where.view(namespace=namespace, facts=changes[1], reader=extractor, config=config)
    options: dict[str, Any] = {"namespace": namespace, "embedder": embedder, "facts": facts, "with_facts": with_facts}
    options |= {"config": config, "reranker": reranker, "durability": durability}
    return Memory(**memory_parts(where, clock=clock, extractor=extractor, **options))


def memory_parts(
    where: str | Mapping[str, Any] | Store,
    *,
    clock: Clock | None = None,
    extractor: Extractor | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The arguments of a Memory on the store that `where` names; the options are those of open_memory."""
    unknown = set(options) - set(_DEFAULTS)
    if unknown:
        known = ", ".join((*_DEFAULTS, "extractor", "clock"))
        raise UsageError(f"a memory has no option {', '.join(sorted(unknown))}; the options are {known}")
    options = {**_DEFAULTS, **options}
    place = place_of(where)
    if isinstance(where, Mapping):
        where, options = _from_mapping(where, options)
    store = store_at(where, Opening(clock, options.pop("durability")))
    return _parts(store, place, extractor=extractor, clock=clock, **options)


def facts_mode(facts: Facts, extractor: Extractor | None, *, with_facts: bool = True) -> Facts:
    """The way to find facts, given all options for it; options that contradict each other are refused."""
    if facts not in FACTS:
        raise UsageError(f"facts={facts!r} is not known; use 'model', 'rules', None or 'auto'")
    if not with_facts:
        if facts in {"model", "rules"}:
            raise UsageError(f"facts={facts!r} and with_facts=False contradict each other; leave with_facts out")
        facts = None
    if extractor is None or isinstance(extractor, RuleExtractor):
        return facts
    if facts in {"rules", None}:
        raise UsageError(f"facts={facts!r} leaves the extractor nothing to do; leave it out, or give facts='model'")
    return "model"


def place_of(where: object) -> str | None:
    """The URL of a store, or of its primary store; None for a store that is open."""
    if isinstance(where, Mapping):
        given: Mapping[str, Any] = where  # pyright: ignore[reportUnknownVariableType]
        where = given.get("truth") or (place_in(given) if given.get("url") else None)
        where = where or f"{given.get('backend')}:{given.get('path') or ''}"
    return where if isinstance(where, str) else None


def _parts(
    store: Store,
    place: str | None,
    *,
    namespace: str | None,
    embedder: str | Embedder | None,
    facts: Facts,
    with_facts: bool,
    extractor: Extractor | None,
    config: MemoryConfig | None,
    reranker: Reranker | None,
    clock: Clock | None,
) -> dict[str, Any]:
    mode = facts_mode(facts, extractor, with_facts=with_facts)
    chosen, why = pick_embedder(embedder, EMBEDDERS)
    by_rules = isinstance(extractor, RuleExtractor)
    rules = extractor if by_rules else RuleExtractor()
    return {
        "store": store,
        "embedder": chosen,
        "extractor": rules if mode is not None else None,
        "reader": None if by_rules else extractor,
        "facts": mode,
        "config": config,
        "namespace": namespace or "default",
        "clock": clock,
        "embedder_note": why,
        "adopt": local_embedder if embedder is None or embedder == "auto" else None,
        "reranker": reranker,
        "place": place,
    }


def _from_mapping(given: Mapping[str, Any], beside: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """The place that a mapping names, and its options, which count more than those beside it."""
    known = (*PLACE_OPTIONS, *_OPTIONS)
    unknown = set(given) - set(known)
    if unknown:
        raise UsageError(f"memory has no option {', '.join(sorted(unknown))}; the options are {', '.join(known)}")
    place = {name: given[name] for name in PLACE_OPTIONS if name in given}
    return place, {**beside, **{name: given[name] for name in beside if name in given}}
