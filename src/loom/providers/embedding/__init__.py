"""Embedders: local ones that need no key, OpenAI and compatible services, and the automatic pick."""
