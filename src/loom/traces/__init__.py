"""What other programs recorded, read back: requests as blocks, and transcripts of any format in one form."""
