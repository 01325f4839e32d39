"""A real control plane on this machine, without containers: etcd, kube-apiserver, controllers, scheduler, KWOK."""
