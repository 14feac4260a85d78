"""A reranker trained on chats of our own: their generator, the training and what was measured."""
