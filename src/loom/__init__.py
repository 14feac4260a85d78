"""Loom: the context-and-memory engine for LLM agents.

Importing this package does no work: each name is loaded from its home when it is first used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# The public names, by the module that defines them; `A=B` is the class B under the public name A. What type checkers
# read, __init__.pyi, is written from this table by `python -m scripts.generate`.
_TABLE = """
    loom.agent._blocking: SyncAgent
    loom.agent.agent: Agent
    loom.agent.result: Result
    loom.api: AgentConfig LoomApp
    loom.catalog: CacheRules ModelInfo find_model
    loom.catalog.catalog: Catalog
    loom.context.cache.diagnose: Finding
    loom.context.cache.explain: Explanation explain
    loom.context.cache.plan: CachePlan Marker PlanWarning plan
    loom.context.cache.prompt: Block BlockOrigin RequestBlocks=Prompt
    loom.context.cache.replay: simulate
    loom.context.cache.simulate: Simulation Step
    loom.context.context: Context Redaction
    loom.context.entry: DocumentEntry Entry ImageEntry MessageEntry StringEntry
    loom.context.file_entry: FileEntry FileView
    loom.context.fragments: Fragment create_context_fragment create_identity_fragment create_memory_fragment
    loom.context.fragments: create_safety_fragment create_tools_fragment
    loom.context.prompt: Prompt PromptBlock PromptBuilder PromptChange
    loom.context.render.messages: CacheWarning
    loom.context.render.request: render
    loom.context.section: Section
    loom.context.skill_match: SkillMatch SkillMatcher tool_refusal
    loom.context.skills: Skill create_active_skill_fragment create_skills_fragment load_skills
    loom.core.checkpoint: Checkpoint Compaction LogEntry LoggedMessage Replacement Shown
    loom.core.clock: Clock
    loom.core.event: CacheStatus CheckpointSaved CompactionEnd CompactionStart ContextPressure Error Event
    loom.core.event: MemoryLearned MemoryPromoted MemoryRecalled MemoryRemembered Recovery SessionEnd SessionStart
    loom.core.event: Text ToolEnd ToolRefused ToolStart TurnEnd TurnStart
    loom.core.filter: And Eq Filter In Not Or Range Where
    loom.core.hit: Hit Passage
    loom.core.ids: RecordIds
    loom.core.message: DocumentPart ImagePart Message NativePart Part Role TextPart ThinkingPart ToolCallPart
    loom.core.message: ToolResultPart ToolSpec Usage
    loom.core.record: Episode Erasure Fact Layer Origin Provenance Receipt Record Scalar StoreReceipt WorkingBlock
    loom.core.run: RunContext
    loom.core.scope: Scope
    loom.core.section: SectionName Stability
    loom.core.window: Notice Past Run View Window WindowPart
    loom.engine._blocking: SyncMemory SyncSession open_memory_sync
    loom.engine.checkpoints: open_checkpoints
    loom.engine.memories: ChromaMemory CompositeMemory PostgresMemory QdrantMemory RedisMemory SqliteMemory
    loom.engine.models: open_model
    loom.engine.open: open_memory
    loom.engine.places: Opening
    loom.errors: BadCacheTTL BadOutput BadRequestFile BadResponse CannotCompact CompactionError ContextOverflow
    loom.errors: CostExceeded EmbedderMismatch EntryNotFound FormatTooNew LoomError MissingExtra NotFound
    loom.errors: ProviderError ProviderUnavailable RateLimited ScopeRequired StaleWrite StoreConflict StoreError
    loom.errors: StoreUnavailable TooManyBreakpoints UnknownSection UsageError
    loom.knowledge.document: Corpus Draft KnowledgeItem
    loom.knowledge.graph: GraphKnowledgeBase
    loom.knowledge.in_memory: InMemoryKnowledgeBase
    loom.knowledge.items: AddedItem
    loom.knowledge.loaders: Loaded load_file load_folder
    loom.knowledge.relations: Relation
    loom.knowledge.service: GraphRagService
    loom.knowledge.shared: SharedCorpus
    loom.knowledge.vector: VectorKnowledgeBase
    loom.memory.candidates: Unconfirmed
    loom.memory.config: MemoryConfig MemoryLayerConfig MemoryStrategyType
    loom.memory.editing: RecordKind
    loom.memory.events: EventKind Timeline TimelineEvent
    loom.memory.explain: Explained
    loom.memory.extract.llm: LlmExtractor
    loom.memory.learning: Facts
    loom.memory.memory: Memory Turn
    loom.memory.neighbours: Store
    loom.memory.profile: Profile
    loom.memory.reembed: Reembedded
    loom.memory.standing: Instructed Standing StandingItem
    loom.memory.values: Learned Metabolized Recalled Remembered Skip
    loom.protocols.approve: Approval Approve ToolRequest
    loom.protocols.checkpoint_store: CheckpointStore
    loom.protocols.compactor: Compactor Rewrite
    loom.protocols.embedder: Embedder Vector
    loom.protocols.extractor: Claim Extraction Extractor
    loom.protocols.jobs: DeadLetter Job Lease
    loom.protocols.key_values: KeyValues
    loom.protocols.knowledge_base: Document KnowledgeBase
    loom.protocols.memory_store: MemoryStore Query
    loom.protocols.model: Chunk Model ModelRequest ModelResponse ModelSettings Rendered Stop TextChunk ThinkingChunk
    loom.protocols.model: ToolCallChunk
    loom.protocols.reranker: Reranker
    loom.protocols.token_counter: TokenCounter
    loom.protocols.tool: Tool ToolOutput
    loom.protocols.vector_store: VectorHit VectorItem VectorStore
    loom.providers.embedding.hashing: HashEmbedder
    loom.providers.embedding.minilm: MiniLmEmbedder
    loom.providers.embedding.openai: OpenAIEmbedder
    loom.providers.embedding.wordllama: WordLlamaEmbedder
    loom.providers.models.anthropic: AnthropicModel
    loom.providers.models.compatible: CompatibleModel
    loom.providers.models.gemini: GeminiModel
    loom.providers.models.litellm: LiteLLMModel
    loom.providers.models.local: LocalModel
    loom.providers.models.offline: OfflineModel
    loom.providers.models.openai_chat: OpenAIChatModel
    loom.providers.models.openai_responses: OpenAIModel
    loom.session.compacting: CompactionPlan
    loom.session.compaction.config: ClearToolsOptions CompactionConfig Retain Trigger
    loom.session.compaction.coverage: Coverage Covered
    loom.session.config: SessionConfig
    loom.session.events: Listener
    loom.session.explaining: SessionExplanation ShownLine
    loom.session.options: TurnOptions
    loom.session.restoring: SessionState
    loom.session.sending: Reply PendingReply
    loom.session.session: Session
    loom.stores.files: FileCheckpointStore
    loom.stores.inmemory.checkpoints: MemoryCheckpointStore
    loom.stores.inmemory.vectors: InMemoryVectorStore
    loom.stores.key_value.checkpoints: KeyValueCheckpointStore
    loom.stores.postgres.checkpoints: PostgresCheckpointStore
    loom.stores.redis.checkpoints: RedisCheckpointStore
    loom.stores.redis.link: Guarantees
    loom.stores.sqlite.checkpoints: SqliteCheckpointStore
    loom.stores.sqlite.connection: Durability
    loom.telemetry.bill: Bill Ledger
    loom.tokens: counter_for
    loom.tools.files: memory_files
    loom.tools.function: FunctionTool ToolError ToolMaker tool
    loom.tools.memory: memory_tools
    loom.tools.run_context: get_run_context
"""

_HOMES: dict[str, tuple[str, str]] = {}
for _line in filter(None, _TABLE.splitlines()):
    _home, _, _names = _line.strip().partition(": ")
    for _name in _names.split():
        _public, _, _inside = _name.partition("=")
        _HOMES[_public] = (_home, _inside or _public)

__all__ = sorted(_HOMES)  # noqa: PLE0605  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'loom' has no attribute {name!r}")
    home, inside = _HOMES[name]
    if name == "Session" or home.startswith("loom.providers.models."):
        import_module("loom.engine.models")  # gives models their renderer, and sessions a way to open models by name
    value = getattr(import_module(home), inside)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
