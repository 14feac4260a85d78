"""Background upkeep of memory: layers, summaries, forgetting, import and export."""
