"""Looking at a cluster that runs, and making things go wrong in it."""
