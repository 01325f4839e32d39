// podnet: the network of pods, where kind's own (kindnetd) cannot be had. All nodes are on one network of Docker's, so it
// takes three things on each node: a configuration of the CNI plugins with this node's range of addresses, a route to the
// range of every other node, and masquerading for what leaves the cluster. NetworkPolicies are not enforced.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

const (
	account       = "/var/run/secrets/kubernetes.io/serviceaccount/"
	configuration = "/etc/cni/net.d/10-podnet.conflist"
	pause         = 3 * time.Second
)

type node struct {
	Metadata struct{ Name string }
	Spec     struct{ PodCIDR string }
	Status   struct {
		Addresses []struct{ Type, Address string }
	}
}

func (n node) address() string {
	for _, address := range n.Status.Addresses {
		if address.Type == "InternalIP" {
			return address.Address
		}
	}
	return ""
}

func main() {
	authority, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		log.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	client := &http.Client{Timeout: 10 * time.Second, Transport: transport}
	for ; ; time.Sleep(pause) {
		if err := arrange(client, os.Getenv("NODE_NAME"), os.Getenv("POD_SUBNET")); err != nil {
			log.Print(err)
		}
	}
}

func arrange(client *http.Client, name, subnet string) error {
	nodes, err := list(client)
	if err != nil {
		return err
	}
	var failed []error
	for _, each := range nodes {
		switch address := each.address(); {
		case each.Spec.PodCIDR == "" || address == "": // it has only just joined
		case each.Metadata.Name == name:
			failed = append(failed, configure(each.Spec.PodCIDR))
		default:
			failed = append(failed, run("ip", "route", "replace", each.Spec.PodCIDR, "via", address))
		}
	}
	rule := strings.Fields("POSTROUTING -s " + subnet + " ! -d " + subnet + " -m comment --comment podnet -j MASQUERADE")
	if run("iptables", append([]string{"-w", "-t", "nat", "-C"}, rule...)...) != nil {
		failed = append(failed, run("iptables", append([]string{"-w", "-t", "nat", "-A"}, rule...)...))
	}
	return errors.Join(failed...)
}

// list asks the endpoint that kind names: the service's address needs kube-proxy, which may come later than we do.
func list(client *http.Client) ([]node, error) {
	token, err := os.ReadFile(account + "token") // it is renewed
	if err != nil {
		return nil, err
	}
	url := "https://" + os.Getenv("CONTROL_PLANE_ENDPOINT") + "/api/v1/nodes?resourceVersion=0"
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %.200s", response.Status, body)
	}
	var found struct{ Items []node }
	return found.Items, json.Unmarshal(body, &found)
}

func configure(subnet string) error {
	device, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	text := fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "podnet", "plugins": [
  {"type": "ptp", "ipMasq": false, "mtu": %d, "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-state",
   "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": %q}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`, device.MTU, subnet)
	if old, err := os.ReadFile(configuration); err == nil && string(old) == text {
		return nil
	}
	if err := os.WriteFile(configuration+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(configuration+".new", configuration)
}

func run(name string, arguments ...string) error {
	if said, err := exec.Command(name, arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(arguments, " "), err, said)
	}
	return nil
}
