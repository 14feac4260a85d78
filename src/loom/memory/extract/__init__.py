"""Finding facts in episodes: by rules, or by asking a model."""
