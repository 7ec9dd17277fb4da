"""Affinity rules, judged: which nodes satisfy a tree of rules, and which rule a node breaks."""
