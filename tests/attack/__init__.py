"""`make attack`: a real hall under attack, and an honest client beside it that must not notice."""
