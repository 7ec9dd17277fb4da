"""Use cases: what a caller may do, as functions over the ledger, the core and the queue.

placing         create, delete, resize, destination, fork, redirect ─ each through place, and again through replacing
what it sees      snapshots, neighbours, cursor, saved_snapshot
what it answers   guarded, remedies, waiver, placed_event, walk_events, supported, idempotency
asking          explain, capacity, why, decisions, replaying, timeline, node_timeline, weighted_affinity
carrying out    wake, work, settle, heartbeat, sweep, served_nodes, drivers
owning          namespaces, claims, authentication, failed_logins, database_clock
nodes           nodes, node_tokens, gpus, resources
watching        views, ledger_health, gauges, metric_catalogue, event_reference
processes       daemon, supervision, leadership, reconciler, context, configuration, cluster_config
"""
