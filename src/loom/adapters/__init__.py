"""Loom inside other frameworks: one module each, imported only by those who use that framework."""
