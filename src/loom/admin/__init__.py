"""Administration of stores: copy, verify, sweep, initialise, diagnose."""
