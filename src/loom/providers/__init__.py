"""Providers: models, embedders and rerankers behind the protocols, each loaded when it is first used."""
