"""The inspector: pages that show what is remembered, believed, always shown, sent and saved."""
