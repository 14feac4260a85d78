"""What other programs recorded, read back: requests as blocks, and transcripts of any format in one form."""

from loom.traces.reader import read_transcripts

__all__ = ["read_transcripts"]
