"""What runs where under Prefect: pools, queues, deployments, and the servers of one machine."""
