"""Supervised fine-tuning: on written conversations, on an environment's oracle, and on recorded rollouts."""
