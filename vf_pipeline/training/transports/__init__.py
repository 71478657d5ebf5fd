"""What travels between engine, worker and trainer: weights one way, rollouts the other."""
