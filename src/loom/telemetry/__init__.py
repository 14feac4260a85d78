"""OpenTelemetry: the names of the GenAI conventions, and spans under them."""
