"""How Loom's table of static vectors is made."""
