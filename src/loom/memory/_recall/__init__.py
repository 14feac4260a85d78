"""Recall: search, rank, pack."""
