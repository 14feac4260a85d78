"""The prompt cache: what will hit before sending, and why it did not afterwards."""
