"""Stores over stores: the same protocol in and out."""
