// KubeRay's controllers of RayJobs and RayClusters, as they are, without its webhooks: those do not compile with the
// controller-runtime of this module, and are off in KubeRay itself unless somebody asks for them.
package main

import (
	"flag"

	config "github.com/ray-project/kuberay/ray-operator/apis/config/v1alpha1"
	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray/batchscheduler"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	health := flag.String("health", "", "Address at which it answers once it has started.")
	flag.Parse()
	ctrl.SetLogger(klog.Background())
	ctx := ctrl.SetupSignalHandler()
	check(rayv1.AddToScheme(scheme.Scheme))
	options := ctrl.Options{
		Scheme: scheme.Scheme, HealthProbeBindAddress: *health, Metrics: server.Options{BindAddress: "0"},
	}
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), options)
	check(err)
	schedulers, err := batchscheduler.NewSchedulerManager(ctx, config.Configuration{}, manager.GetConfig(), manager.GetClient())
	check(err)
	clusters := ray.RayClusterReconcilerOptions{BatchSchedulerManager: schedulers}
	check(ray.NewReconciler(ctx, manager, clusters).SetupWithManager(manager, 1))
	jobs := ray.RayJobReconcilerOptions{BatchSchedulerManager: schedulers}
	check(ray.NewRayJobReconciler(ctx, manager, jobs, config.Configuration{}).SetupWithManager(manager, 1))
	check(manager.AddReadyzCheck("readyz", healthz.Ping))
	check(manager.Start(ctx))
}

func check(err error) {
	if err != nil {
		klog.Fatal(err)
	}
}
