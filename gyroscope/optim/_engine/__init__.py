"""How a step is carried out: one loop, scratch memory, batches, rounding, shards, compiled programs."""
