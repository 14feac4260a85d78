"""The agent: a model, tools and a memory over sessions."""
