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
    loom.agent.agent: Agent Result
    loom.api: AgentConfig LoomApp
    loom.catalog: CacheRules Catalog ModelInfo find_model
    loom.context.cache.audit: Audit AuditedCall AuditedGroup AuditedSession CollapseSum audit
    loom.context.cache.collapses: Collapse
    loom.context.cache.diagnose: simulate
    loom.context.cache.explain: Explanation explain
    loom.context.cache.plan: CachePlan Marker PlanWarning plan
    loom.context.cache.simulate: Finding Simulation Step
    loom.context.context: Context Redaction
    loom.context.entry: DocumentEntry Entry ImageEntry MessageEntry Section StringEntry
    loom.context.file_entry: FileEntry FileView
    loom.context.prompt: Fragment Prompt PromptBlock PromptBuilder PromptChange create_context_fragment
    loom.context.prompt: create_identity_fragment create_memory_fragment create_safety_fragment create_tools_fragment
    loom.context.render.request: CacheWarning render
    loom.context.skills: Skill SkillMatch SkillMatcher create_active_skill_fragment create_skills_fragment load_skills
    loom.context.skills: tool_refusal
    loom.core.clock: Clock RecordIds
    loom.core.filter: And Eq Filter In Not Or Range Where
    loom.core.log: CacheStatus Checkpoint CheckpointSaved Compaction CompactionEnd CompactionStart ContextPressure
    loom.core.log: Error Event LogEntry LoggedMessage MemoryLearned MemoryPromoted MemoryRecalled MemoryRemembered
    loom.core.log: Recorded Recovery Replacement SavedSession SessionEnd SessionStart Shown Text ToolEnd ToolRefused
    loom.core.log: ToolStart TurnEnd TurnStart
    loom.core.message: DocumentPart ImagePart Message NativePart Part Role TextPart ThinkingPart ToolCallPart
    loom.core.message: ToolResultPart ToolSpec Usage
    loom.core.record: Claim Episode Erasure Excerpt Fact Hit Layer Origin Passage Provenance Receipt Record Scalar
    loom.core.record: StoreReceipt WorkingBlock
    loom.core.scope: RunContext Scope
    loom.core.window: Block BlockOrigin Notice Past RequestBlocks Run SectionName Stability View Window WindowPart
    loom.engine._blocking: SyncMemory SyncSession open_memory_sync
    loom.engine.open: ChromaMemory CompositeMemory PostgresMemory QdrantMemory RedisMemory SqliteMemory
    loom.engine.open: open_checkpoints open_memory open_model
    loom.engine.urls: Opening
    loom.errors: BadCacheTTL BadOutput BadRequestFile BadResponse CannotCompact CompactionError ContextOverflow
    loom.errors: CostExceeded EmbedderMismatch EntryNotFound FormatTooNew LoomError MissingExtra NotFound
    loom.errors: ProviderError ProviderUnavailable RateLimited ScopeRequired StaleWrite StoreConflict StoreError
    loom.errors: StoreUnavailable TooManyBreakpoints UnknownSection UsageError
    loom.knowledge._shared: SharedCorpus
    loom.knowledge.document: AddedItem Corpus Draft KnowledgeItem
    loom.knowledge.graph: GraphKnowledgeBase GraphRagService Relation
    loom.knowledge.in_memory: InMemoryKnowledgeBase
    loom.knowledge.loaders: Loaded load_file load_folder
    loom.knowledge.vector: VectorKnowledgeBase
    loom.memory._editing: RecordKind
    loom.memory._facts.instructions: Instructed Overview Profile Standing StandingItem Unconfirmed
    loom.memory._history: TextHistory TextVersion
    loom.memory._upkeep.explain: EventKind Explained Timeline TimelineEvent
    loom.memory._write.extract_llm: LlmExtractor
    loom.memory._write.ingest: Utterance
    loom.memory._write.learn_in_background: Facts
    loom.memory._write.write: Reembedded
    loom.memory.config: MemoryConfig MemoryLayerConfig MemoryStrategyType
    loom.memory.memory: Memory
    loom.memory.results: Learned Metabolized Recalled Remembered Skip
    loom.protocols.checkpoint_store: CheckpointStore Forks KeyValues PrunesCheckpoints
    loom.protocols.compactor: Compactor Rewrite
    loom.protocols.embedder: Embedder Vector
    loom.protocols.extractor: Extraction Extractor
    loom.protocols.knowledge_base: Document KnowledgeBase
    loom.protocols.memory_store: DeadLetter Job Lease MemoryStore Query Store
    loom.protocols.model: Chunk Model ModelRequest ModelResponse ModelSettings Rendered Stop TextChunk ThinkingChunk
    loom.protocols.model: ToolCallChunk
    loom.protocols.reranker: Reranker
    loom.protocols.token_counter: TokenCounter
    loom.protocols.tool: Approval Approve Tool ToolError ToolOutput ToolRequest
    loom.protocols.vector_store: VectorHit VectorItem VectorStore
    loom.providers.embedding.local: HashEmbedder MiniLmEmbedder StaticEmbedder WordLlamaEmbedder
    loom.providers.embedding.openai: OpenAIEmbedder
    loom.providers.models.anthropic: AnthropicModel
    loom.providers.models.gemini: GeminiModel
    loom.providers.models.litellm: LiteLLMModel
    loom.providers.models.local: LocalModel
    loom.providers.models.offline: OfflineModel
    loom.providers.models.openai: CompatibleModel OpenAIChatModel OpenAIModel
    loom.session.compaction.coverage: Coverage Covered
    loom.session.compaction.driver: CompactionPlan
    loom.session.config: ClearToolsOptions CompactionConfig Retain SessionConfig Trigger
    loom.session.history: SessionState
    loom.session.journal: CacheLoss CacheMarker RequestRecord request_body requests_of
    loom.session.reply: Listener PendingReply Reply
    loom.session.session: Session SessionExplanation ShownLine
    loom.session.turn: TurnOptions
    loom.stores.files.checkpoints: FileCheckpointStore
    loom.stores.inmemory.checkpoints: MemoryCheckpointStore
    loom.stores.inmemory.vectors: InMemoryVectorStore
    loom.stores.key_value.checkpoints: KeyValueCheckpointStore
    loom.stores.postgres.checkpoints: PostgresCheckpointStore
    loom.stores.redis.checkpoints: RedisCheckpointStore
    loom.stores.redis.connection: Guarantees
    loom.stores.sqlite.checkpoints: SqliteCheckpointStore
    loom.stores.sqlite.connection: Durability
    loom.telemetry.recording: Bill Ledger configure_telemetry
    loom.text.tokens: counter_for
    loom.tools.files: memory_files
    loom.tools.function: FunctionTool ToolMaker get_run_context tool
    loom.tools.memory: memory_tools
    loom.traces.reader: read_transcripts
    loom.traces.transcript: RecordedCall RecordedCompaction SkippedLine SpokenText Transcript
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
        import_module("loom.engine.open")  # gives models their renderer, and sessions a way to open models by name
    value = getattr(import_module(home), inside)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
