// The controller of MPIJobs (v2beta1), as it is. Its own program wants port 8080 for health checks whatever it is told,
// which two on one machine cannot both have, and waits for a lease first: this one has neither, and starts anew often.
package main

import (
	"context"
	"flag"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

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

// How long a controller runs before the next one takes its place.
const longest = 20 * time.Second

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
	go func() {
		check(http.ListenAndServe(*health, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	}()
	for ctx.Err() == nil {
		runForAWhile(ctx, client, jobs, option)
	}
}

// Run a controller, and end it after a while. Its queue takes each event for a failure until it has dealt with the job,
// and doubles its pause each time, up to a quarter of an hour; a new one begins with none, as after a change of leader.
func runForAWhile(
	ctx context.Context, client kubernetes.Interface, jobs versioned.Interface, option *options.ServerOption,
) {
	ctx, stop := context.WithTimeout(ctx, longest)
	defer stop()
	theirs, ours := informers.NewSharedInformerFactory(client, 0), externalversions.NewSharedInformerFactory(jobs, 0)
	core := theirs.Core().V1()
	made, err := controller.NewMPIJobController(
		ctx, client, jobs, nil, nil, core.ConfigMaps(), core.Secrets(), core.Services(), theirs.Batch().V1().Jobs(),
		core.Pods(), theirs.Scheduling().V1().PriorityClasses(), ours.Kubeflow().V2beta1().MPIJobs(), option,
	)
	check(err)
	theirs.Start(ctx.Done())
	ours.Start(ctx.Done())
	if err := made.Run(option.Threadiness, ctx.Done()); err != nil && ctx.Err() == nil {
		klog.Fatal(err)
	}
}

func check(err error) {
	if err != nil {
		klog.Fatal(err)
	}
}
