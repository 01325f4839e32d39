// The controller of MPIJobs (v2beta1), as it is. Its own program wants port 8080 for health checks whatever it is told,
// which two on one machine cannot both have, and waits for a lease first: this one has neither.
package main

import (
	"context"
	"flag"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/kubeflow/mpi-operator/cmd/mpi-operator/app/options"
	"github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned"
	mpischeme "github.com/kubeflow/mpi-operator/pkg/client/clientset/versioned/scheme"
	"github.com/kubeflow/mpi-operator/pkg/client/informers/externalversions"
	"github.com/kubeflow/mpi-operator/pkg/controller"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func main() {
	option := options.NewServerOption()
	option.AddFlags(flag.CommandLine)
	health := flag.String("health", "", "Address at which it answers once it has started.")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	config, err := clientcmd.BuildConfigFromFlags(option.MasterURL, os.Getenv("KUBECONFIG"))
	check(err)
	config.QPS, config.Burst = float32(option.QPS), option.Burst
	client, jobs := kubernetes.NewForConfigOrDie(config), versioned.NewForConfigOrDie(config)
	check(mpischeme.AddToScheme(scheme.Scheme)) // for events about MPIJobs
	theirs, ours := informers.NewSharedInformerFactory(client, 0), externalversions.NewSharedInformerFactory(jobs, 0)
	core := theirs.Core().V1()
	made, err := controller.NewMPIJobController(
		ctx, client, jobs, nil, nil, core.ConfigMaps(), core.Secrets(), core.Services(), theirs.Batch().V1().Jobs(),
		core.Pods(), theirs.Scheduling().V1().PriorityClasses(), ours.Kubeflow().V2beta1().MPIJobs(), option,
	)
	check(err)
	theirs.Start(ctx.Done())
	ours.Start(ctx.Done())
	theirs.WaitForCacheSync(ctx.Done())
	ours.WaitForCacheSync(ctx.Done())
	go func() {
		check(http.ListenAndServe(*health, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	}()
	check(made.Run(option.Threadiness, ctx.Done()))
}

func check(err error) {
	if err != nil {
		klog.Fatal(err)
	}
}
