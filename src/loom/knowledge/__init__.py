"""Knowledge bases: documents cut into passages, and found again by words, by vectors and along relations."""
