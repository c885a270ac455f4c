// Command localkube is Kubernetes in one program, for tests and `gpuclaim up`:
// the released components, unchanged, and a stand-in for the container runtime.
//
// The component is named by the first argument (localkube kube-apiserver …) or
// by the program's own name, so that links to it act as the components do.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // kubectl: exec and OIDC credentials
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// components take their arguments from os.Args and return the exit code.
var components = map[string]func() int{
	"etcd":                    runEtcd,
	"fake-runtime":            runFakeRuntime,
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubectl":                 runKubectl,
	"kubelet":                 func() int { return cli.Run(newKubelet(kubelet.NewKubeletCommand)) },
}

func main() {
	run, ok := components[filepath.Base(os.Args[0])]
	if !ok && len(os.Args) > 1 {
		if run, ok = components[os.Args[1]]; ok {
			os.Args = os.Args[1:]
		}
	}
	if !ok {
		names := make([]string, 0, len(components))
		for name := range components {
			names = append(names, name)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "usage: %s COMPONENT [argument…]\ncomponents: %s\n",
			filepath.Base(os.Args[0]), strings.Join(names, " "))
		os.Exit(2)
	}
	os.Exit(run())
}

// runEtcd returns only on errors that etcd itself has logged; it exits by itself otherwise.
func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err) // prints and exits with kubectl's code
	}
	return 0
}

// newKubelet calls the constructor, which takes a context in some versions only.
func newKubelet(constructor any) *cobra.Command {
	switch build := constructor.(type) {
	case func(context.Context) *cobra.Command:
		return build(context.Background())
	case func() *cobra.Command:
		return build()
	}
	panic(fmt.Sprintf("kubelet's constructor is a %T in this version", constructor))
}
