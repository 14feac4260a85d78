"""Values and pure rules: standard library only, no I/O."""
