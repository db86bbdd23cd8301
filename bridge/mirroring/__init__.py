"""Following a source commit by commit, for ever: pairs, rounds, the loop round them, and what it tells."""
