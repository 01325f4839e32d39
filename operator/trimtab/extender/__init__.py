"""The scheduler extender: tells a kube-scheduler which node the plan gives a pod."""
