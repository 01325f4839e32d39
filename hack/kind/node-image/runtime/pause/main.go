// pause: the first process of a pod. It holds the pod's namespaces, reaps orphans, and ends when it is told to.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	told := make(chan os.Signal, 16)
	signal.Notify(told, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for which := range told {
		if which != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
