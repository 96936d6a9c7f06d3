"""Recording and comparing runs."""
