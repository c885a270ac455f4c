// Command localkubevirt is the part of KubeVirt that turns a VirtualMachine into
// a launcher pod, for tests and `gpuclaim up`: the released virt-controller,
// unchanged, and the CRDs that it needs.
//
// The first argument says which: localkubevirt virt-controller …, localkubevirt crds.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"kubevirt.io/kubevirt/pkg/virt-controller/watch"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
)

// definitions are the CRDs that virt-operator installs, and its own.
var definitions = []func() (*extensions.CustomResourceDefinition, error){
	components.NewKubeVirtCrd,
	components.NewMigrationPolicyCrd,
	components.NewPresetCrd,
	components.NewReplicaSetCrd,
	components.NewVirtualMachineBackupCrd,
	components.NewVirtualMachineBackupTrackerCrd,
	components.NewVirtualMachineCloneCrd,
	components.NewVirtualMachineClusterInstancetypeCrd,
	components.NewVirtualMachineClusterPreferenceCrd,
	components.NewVirtualMachineCrd,
	components.NewVirtualMachineExportCrd,
	components.NewVirtualMachineInstanceCrd,
	components.NewVirtualMachineInstanceMigrationCrd,
	components.NewVirtualMachineInstancetypeCrd,
	components.NewVirtualMachinePoolCrd,
	components.NewVirtualMachinePreferenceCrd,
	components.NewVirtualMachineRestoreCrd,
	components.NewVirtualMachineSnapshotContentCrd,
	components.NewVirtualMachineSnapshotCrd,
}

func main() {
	command := ""
	if len(os.Args) > 1 {
		command = os.Args[1]
		os.Args = os.Args[1:] // virt-controller reads its flags from there
	}
	switch command {
	case "virt-controller":
		watch.Execute()
		// It returns when its configuration asks for a restart, which is then the caller's to do.
		os.Exit(1)
	case "crds":
		if err := printDefinitions(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		fmt.Fprintf(os.Stderr, "usage: %s virt-controller [flag…] | crds\n", filepath.Base(os.Args[0]))
		os.Exit(2)
	}
}

// printDefinitions writes one CRD a line, as JSON without status: an apiserver
// takes no status that is half empty.
func printDefinitions() error {
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	for _, define := range definitions {
		definition, err := define()
		if err != nil {
			return err
		}
		if err := out.Encode(map[string]any{
			"apiVersion": definition.APIVersion,
			"kind":       definition.Kind,
			"metadata":   map[string]any{"name": definition.Name, "labels": definition.Labels},
			"spec":       definition.Spec,
		}); err != nil {
			return err
		}
	}
	return nil
}
