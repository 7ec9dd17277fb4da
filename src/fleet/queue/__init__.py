"""The queue: RQ on Redis. It only wakes; the row of the operation is the truth. JSON only, no code ever travels."""
