"""The live system: caches, leadership, and the round that calls observe, decide, plan and apply in that order."""
