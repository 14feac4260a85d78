"""Opening memories, checkpoint stores and models by URL or name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from loom.core.checks import did_you_mean, nearest
from loom.core.clock import Clock
from loom.core.record import Layer
from loom.engine.urls import (
    PLACE_OPTIONS,
    REDIS_SCHEMES,
    STORES,
    Opening,
    Registry,
    place_in,
    scheme_hint,
    store_at,
    written_out,
)
from loom.errors import MissingExtra, UsageError
from loom.memory._write.extract_rules import RuleExtractor
from loom.memory._write.learn_in_background import FACTS, Facts
from loom.memory.config import MemoryConfig
from loom.memory.memory import Memory
from loom.protocols.checkpoint_store import CheckpointStore, KeyValues
from loom.protocols.embedder import Embedder
from loom.protocols.extractor import Extractor
from loom.protocols.memory_store import MemoryStore, Store
from loom.protocols.model import Model, ModelRequest, Rendered
from loom.protocols.reranker import Reranker
from loom.protocols.tool import Tool
from loom.providers import models
from loom.providers.embedding.choose import BUILT_IN, OpensEmbedder, local_embedder, pick_embedder
from loom.providers.models.offline import OfflineModel
from loom.session import OPENER, TOOL_MAKER
from loom.stores import files, inmemory, sqlite

if TYPE_CHECKING:
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
    url: str | Mapping[str, Any] | Memory | Store = "inmemory",
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
    """A memory on the store that `url` names. Nothing is read or written before the first call.

    Args:
        url: `inmemory`, `sqlite:PATH`, `chroma:FOLDER`, `qdrant:FOLDER`, a URL (`postgres://...`, `redis://...`,
            `redis+cluster://HOST:6379,HOST:6379/`, `qdrant+http://HOST:6333?primary=...`, the same for Chroma), a
            store, a memory, or a mapping with `backend`, `path` or `url` and any of the options below, which count
            more than those beside it. The backend `composite` puts stores together: `primary` keeps everything that
            no other part does, `vectors` is a vector engine for what the primary store keeps, and `layers` gives
            layers stores of their own, such as `{"l2": "redis://..."}`; see CompositeMemory. As a URL:
            `composite:?primary=...&vectors=...&l2=...`.
            For Redis, `durable` refuses a server that may lose what it acknowledged, and `ttl` says how long episodes
            stay: seconds, `"7d"`, or `{"l1": "1h", "rest": "30d"}`. In its URL: `?durable=true&ttl=30d&ttl_l1=1h`.
            Of a memory that is open, another namespace, configuration or way to find facts gives a view: it shares
            the store, and closing it leaves the store open.
        namespace: keeps applications on one store apart; `default` if not given.
        embedder: a name (`static`, `wordllama`, `minilm`, `openai`, `hash`, or one that an installed package adds) or
            an embedder. If not given: one on this machine, which is the one that the store was made with if that is
            installed, else `static`. Nothing else sends texts anywhere.
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
    if isinstance(url, Memory):
        if embedder is not None or reranker is not None:
            raise UsageError("a memory that is open keeps its embedder and its reranker; give them when it is opened")
        changes = namespace, facts_mode(facts, extractor, with_facts=with_facts), extractor, config
        if changes == (None, "auto", None, None):
            return url
        return url.view(namespace=namespace, facts=changes[1], reader=extractor, config=config)
    options: dict[str, Any] = {"namespace": namespace, "embedder": embedder, "facts": facts, "with_facts": with_facts}
    options |= {"config": config, "reranker": reranker, "durability": durability}
    return Memory(**memory_parts(url, clock=clock, extractor=extractor, **options))


def memory_parts(
    url: str | Mapping[str, Any] | Store,
    *,
    clock: Clock | None = None,
    extractor: Extractor | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The arguments of a Memory on the store that `url` names; the options are those of open_memory."""
    unknown = set(options) - set(_DEFAULTS)
    if unknown:
        known = ", ".join((*_DEFAULTS, "extractor", "clock"))
        hint = did_you_mean(min(unknown), (*_DEFAULTS, "extractor", "clock"))
        raise UsageError(f"a memory has no option {', '.join(sorted(unknown))}; the options are {known}{hint}")
    options = {**_DEFAULTS, **options}
    place = place_of(url)
    if isinstance(url, Mapping):
        known = (*PLACE_OPTIONS, *_OPTIONS)
        if unknown := set(url) - set(known):
            names, hint = ", ".join(sorted(unknown)), did_you_mean(min(unknown), known)
            raise UsageError(f"memory has no option {names}; the options are {', '.join(known)}{hint}")
        options |= {name: url[name] for name in options if name in url}
        url = {name: url[name] for name in PLACE_OPTIONS if name in url}
    store = store_at(url, Opening(clock, options.pop("durability")))
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


def place_of(url: object) -> str | None:
    """The URL of a store, or of its primary store; None for a store that is open."""
    if isinstance(url, Mapping):
        given: Mapping[str, Any] = url  # pyright: ignore[reportUnknownVariableType]
        url = given.get("primary") or (place_in(given) if given.get("url") else None)
        url = url or f"{given.get('backend')}:{given.get('path') or ''}"
    return url if isinstance(url, str) else None


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
    if config is not None and not isinstance(config, MemoryConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"the config of a memory is {config!r:.60}; give a MemoryConfig, such as MemoryConfig(l1=...)")
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


# Opening a checkpoint store: a URL becomes the store it names.

_FORMS = "inmemory, files:FOLDER, sqlite:PATH, postgres://USER@HOST/DATABASE or redis://HOST:6379/0"


def open_checkpoints(url: str | CheckpointStore | KeyValues = "inmemory") -> CheckpointStore:
    """A store of sessions; nothing is read or written before the first call, and no server is asked.

    Args:
        url: `inmemory`, `files:FOLDER`, `sqlite:PATH`, `postgres://...`, `redis://...`, `rediss://...`,
            `unix://...` (the socket of a Redis server), `redis+cluster://HOST:6379,HOST:6379/`, or a store; or anything
            that keeps values by key, such as a bucket: see KeyValueCheckpointStore.
    """
    if isinstance(url, CheckpointStore):
        return url
    if not isinstance(url, str):
        from loom.stores.key_value.checkpoints import KeyValueCheckpointStore  # noqa: PLC0415  (only where it is used)

        return KeyValueCheckpointStore(url)
    url = written_out(url)
    backend, _, path = url.partition(":")
    path = path.removeprefix("//")
    if backend == "inmemory" and not path:
        return inmemory.MemoryCheckpointStore()
    opens = _OPENERS.get(backend)
    if opens is None:
        hint = scheme_hint(url)  # only the scheme is repeated: what follows may hold a password
        raise UsageError(f"there is no checkpoint store {backend!r}; write {_FORMS}{hint}")
    if not path:
        raise UsageError(f"{backend} needs an address; write {_FORMS}")
    return opens(path if backend in {"files", "sqlite"} else url)


# Each store is imported when it is first opened; the driver of a server may not even be installed.


def _files(path: str) -> CheckpointStore:
    return files.FileCheckpointStore(path)


def _sqlite(path: str) -> CheckpointStore:
    return sqlite.SqliteCheckpointStore(path)


def _postgres(url: str) -> CheckpointStore:
    from loom.stores.postgres.checkpoints import PostgresCheckpointStore  # noqa: PLC0415

    return PostgresCheckpointStore(url)


def _redis(url: str) -> CheckpointStore:
    from loom.stores.redis.checkpoints import RedisCheckpointStore  # noqa: PLC0415

    return RedisCheckpointStore(url)


_OPENERS: dict[str, Callable[[str], CheckpointStore]] = {
    "files": _files,
    "sqlite": _sqlite,
    **dict.fromkeys(("postgres", "postgresql"), _postgres),
    **dict.fromkeys(REDIS_SCHEMES, _redis),
}


# Opening a model by its name: `provider:model` becomes a Model on that provider's SDK.

DEFAULT_MODEL = "LOOM_MODEL"

OpensModel: TypeAlias = Callable[..., Model]
"""Makes a model of the text behind `provider:` and the options of open_model()."""


def open_model(model: str | Model | None = None, **options: Any) -> Model:
    """The model of a name. No provider is called before the first request.

    Args:
        model: `anthropic:MODEL`, `openai:MODEL` (Responses), `openai_chat:MODEL`, `gemini:MODEL`, `compatible:MODEL`
            (any server that speaks the OpenAI Chat form, at `base_url` or LOOM_BASE_URL), `ollama:MODEL` and the like
            for a server at its usual address, `litellm:MODEL` (whatever LiteLLM knows), `local:PATH` (a GGUF file, run
            in this process), a provider that an installed package adds; or a model, which is returned as it is. None
            takes the name in LOOM_MODEL, and without one a model that needs no key and answers with what it finds in
            memory.
        options: `api_key`, `base_url`, `client`, `timeout` and whatever else that model takes.
    """
    if model is None:
        model = os.environ.get(DEFAULT_MODEL, "").strip() or OfflineModel.name
    if not isinstance(model, str):
        if not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{model!r} is not a model; give provider:model or a Model")
        if options:
            raise UsageError(f"{', '.join(options)}: a model that is already made takes no options")
        return model
    check_name(model)
    provider, _, id = model.partition(":")
    return MODELS[provider](id, **options)


def check_name(model: str) -> None:
    """Refuse what names no model; whether its package and its key are there is not checked."""
    provider, _, id = model.partition(":")
    if not id or provider not in MODELS:
        raise UsageError(
            f"{model!r} names no model; write provider:model, where the providers are {', '.join(sorted(MODELS))}; "
            f"use compatible:MODEL with base_url= for any other server that speaks the OpenAI Chat form"
            f"{_model_hint(model)}"
        )


_FAMILIES = {"claude": "anthropic", "gpt": "openai", "chatgpt": "openai", "gemini": "gemini", "grok": "xai"}
"""Providers by how the names of their models begin."""


def _model_hint(model: str) -> str:
    """The name that was meant: with the provider of a model that was named alone, or a provider that is almost it."""
    if model.lower().endswith(".gguf"):
        return f"; did you mean 'local:{model}'?"
    provider, _, id = model.partition(":") if ":" in model else model.partition("/")
    if id:
        if provider in MODELS:  # as LiteLLM writes it
            return f"; did you mean '{provider}:{id}'?"
        words = {"google": "gemini", "claude": "anthropic", "azure": "compatible", "llama": "llamacpp"}
        meant = words.get(provider) or nearest(provider, MODELS)
        return f"; did you mean '{meant}:{id}'?" if meant else ""
    if provider in MODELS:
        return f"; name one of its models: {provider}:MODEL"
    family = _FAMILIES.get(model.partition("-")[0].lower())
    return f"; did you mean '{family}:{model}'?" if family else did_you_mean(model, MODELS)


def _offline(_: str, **options: Any) -> Model:
    if options:
        raise UsageError(f"{OfflineModel.name} has no options, and {', '.join(options)} is given; name another model")
    return OfflineModel()


def _opens(name: str, **given: Any) -> OpensModel:
    """Makes a model of the class of this name, which is imported then."""

    def make(id: str, **options: Any) -> Model:
        made = getattr(models, name)
        if options:
            _check_options(made, options, given)
        return made(id, **given, **options)

    return make


def _check_options(made: type[Model], options: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse options that this kind of model does not take."""
    from inspect import Parameter, signature  # noqa: PLC0415  (only where there are options)

    taken = signature(made).parameters.values()
    names = [one.name for one in taken if one.kind is Parameter.KEYWORD_ONLY and one.name not in given]
    unknown = sorted(set(options) - set(names))
    if unknown and not any(one.kind is Parameter.VAR_KEYWORD for one in taken):
        provider = getattr(made, "provider", made.__name__)
        listed = f"{', '.join(names)}{did_you_mean(unknown[0], names)}"
        raise UsageError(f"a model of {provider} has no option {', '.join(unknown)}; the options are {listed}")


MODELS: Registry[OpensModel] = Registry(
    "loom.models",
    {
        "offline": _offline,
        "anthropic": _opens("AnthropicModel"),
        "openai": _opens("OpenAIModel"),
        "openai_chat": _opens("OpenAIChatModel"),
        "compatible": _opens("CompatibleModel"),
        "gemini": _opens("GeminiModel"),
        "litellm": _opens("LiteLLMModel"),
        "local": _opens("LocalModel"),
        **{name: _opens("CompatibleModel", service=name) for name in models.SERVICES},
    },
)


# Rendering a request that comes without a body, for models that are called outside a session.


def render_request(request: ModelRequest, provider: str, model: str) -> Rendered:
    """The body of a request for a provider: the one it brings along, or one made of its neutral fields."""
    if request.rendered is not None and request.rendered.provider == provider:
        return request.rendered
    # Imported here, because a process that only remembers and recalls does without the context engine.
    from loom.context.context import Context  # noqa: PLC0415
    from loom.context.entry import MessageEntry, StringEntry  # noqa: PLC0415
    from loom.context.render.request import prepare  # noqa: PLC0415

    context = Context("request", tools=request.tools)
    for text in request.system:
        context.foundation.add(StringEntry(text, repeat=True))
    for message in request.messages:
        context.convo.add(MessageEntry(message))
    return Rendered(provider, prepare(context.compile(), provider, model).body)


def _as_tool(given: Any) -> Tool:
    from loom.tools.function import as_tool  # noqa: PLC0415  (pydantic, only where there are tools)

    return as_tool(given)


# The layers below get what they need from here: models a renderer, sessions a way to open a model by its name and to
# make a tool of a function.
models.RENDERER.fill(render_request)
OPENER.fill(open_model)
TOOL_MAKER.fill(_as_tool)


# Memory classes by backend: each is a Memory, and the same as open_memory() with its URL.


class SqliteMemory(Memory):
    """A Memory in one SQLite file, which is made at the first use: the same as `open_memory("sqlite:PATH")`.

    The options are those of `open_memory`.
    """

    def __init__(self, path: str | PathLike[str], **options: Any) -> None:
        place = fspath(path)
        super().__init__(**memory_parts(place if place.startswith("sqlite:") else f"sqlite:{place}", **options))


class PostgresMemory(Memory):
    """A Memory in Postgres, connected at the first use: the same as `open_memory("postgres://...")`.

    The options are those of `open_memory`.
    """

    def __init__(self, url: str, **options: Any) -> None:
        _check_scheme(url, ("postgres", "postgresql"), "postgres://USER:PASSWORD@HOST/DATABASE")
        _check_packages("a Postgres memory", "postgres", "psycopg", "psycopg_pool")
        super().__init__(**memory_parts(url, **options))


class RedisMemory(Memory):
    """A Memory on a Redis server, connected at the first use: the same as `open_memory("redis://...")`.

    `durable=True` refuses a server that may lose what it acknowledged; `ttl` says how long episodes stay: seconds,
    `"7d"`, or one for each layer, `{"l1": "1h", "rest": "30d"}`. The other options are those of `open_memory`.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        durable: bool | None = None,
        ttl: float | str | Mapping[str, float | str] | None = None,
        **options: Any,
    ) -> None:
        _check_scheme(url, REDIS_SCHEMES, "redis://HOST:6379/0")
        _check_packages("a Redis memory", "redis", "redis")
        place = {"backend": "redis", "url": url, "durable": durable, "ttl": ttl}
        super().__init__(**memory_parts(place, **options))


class _VectorMemory(Memory):
    """A Memory whose vectors are searched by one engine."""

    _ENGINE: ClassVar[str]

    def __init__(self, path: str | PathLike[str] | Mapping[str, Any] | None = None, **options: Any) -> None:
        if isinstance(path, Mapping):
            super().__init__(**memory_parts(path, **options))
            return
        place = "" if path is None else fspath(path)
        if place.startswith(("http://", "https://")):
            raise UsageError(
                f"{place} is a server; open it with {type(self).__name__}.server({place!r}, primary='./memory.db')"
            )
        super().__init__(**memory_parts(f"{self._ENGINE}:{place}" if place else self._ENGINE, **options))

    @classmethod
    def local(cls, path: str | PathLike[str], **options: Any) -> Self:
        """A memory in a folder, made at the first use: the engine's files, and `memory.db` beside them.

        The folder belongs to one process at a time.
        """
        return cls(path, **options)

    @classmethod
    def ephemeral(cls, **options: Any) -> Self:
        """A memory that is gone when it is closed."""
        return cls(**options)

    @classmethod
    def server(cls, url: str, *, primary: str | PathLike[str], **options: Any) -> Self:
        """A memory whose vectors are searched by the server at `url`; `primary` is the file or the store beside it.

        A store is written like any other: `postgres://...`. Anything else is the path of a SQLite file.
        """
        beside = fspath(primary)
        is_place = beside.partition(":")[0] in STORES
        place = {"backend": cls._ENGINE, "url": url, "primary": beside if is_place else f"sqlite:{beside}"}
        return cls(place, **options)


class ChromaMemory(_VectorMemory):
    """A Memory whose vectors are searched by Chroma: in a folder, beside a server, or in this process alone.

    Chroma keeps vectors alone: records, facts, blocks and jobs are in a store beside it, from which the vectors can be
    built again at any time. The options are those of `open_memory`.
    """

    _ENGINE = "chroma"


class QdrantMemory(_VectorMemory):
    """A Memory whose vectors are searched by Qdrant: in a folder, beside a server, or in this process alone.

    Qdrant keeps vectors alone: records, facts, blocks and jobs are in a store beside it, from which the vectors can be
    built again at any time. In a folder and in memory it is the engine inside `qdrant-client`, which is for thousands
    of vectors. The options are those of `open_memory`.
    """

    _ENGINE = "qdrant"


class CompositeMemory(Memory):
    """A Memory whose layers live in different stores, each given as a URL or a store.

    A layer without a store of its own lives with the next layer above that has one. `primary` holds facts,
    blocks, jobs and the archive, so it should be the durable one; if it is not given, that is the store of the highest
    layer named. `vectors` is a vector engine beside `primary`. The options are those of `open_memory`.
    """

    def __init__(
        self,
        *,
        l1: str | MemoryStore | None = None,
        l2: str | MemoryStore | None = None,
        l3: str | MemoryStore | None = None,
        l4: str | MemoryStore | None = None,
        primary: str | MemoryStore | None = None,
        vectors: str | None = None,
        **options: Any,
    ) -> None:
        named = {Layer.L1: l1, Layer.L2: l2, Layer.L3: l3, Layer.L4: l4}
        layers = {layer.label.lower(): store for layer, store in named.items() if store is not None}
        if primary is None and not layers:
            raise UsageError("no layer was given a store; name `primary`, or at least the store of l4")
        place = {"backend": "composite", "primary": primary, "vectors": vectors, "layers": layers}
        super().__init__(**memory_parts({name: value for name, value in place.items() if value}, **options))
        top = primary if primary is not None else list(layers.values())[-1]
        self.place = top if isinstance(top, str) else None


def _check_scheme(url: str, schemes: tuple[str, ...], form: str) -> None:
    if url.partition(":")[0].lower() not in schemes:
        # What follows the scheme may hold a password.
        raise UsageError(f"a URL that starts with {url.partition(':')[0]!r} is of another store; write {form}")


def _check_packages(what: str, extra: str, *packages: str) -> None:
    if any(find_spec(package) is None for package in packages):
        raise MissingExtra(what, extra)
