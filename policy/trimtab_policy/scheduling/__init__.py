"""What stands between any policy and the cluster: whose turn it is, what is kept for whom, who gives way to whom."""
