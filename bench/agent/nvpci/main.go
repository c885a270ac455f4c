// Command nvpci times go-nvlib's scan of a sysfs tree, as NVIDIA's own components do it.
//
//	nvpci TREE PASSES [plain]
//
// prints the number of GPUs found, and a line with the microseconds of each pass. The library is made once, as its
// users do; a pass is one GetGPUs. The library reads its whole database of PCI IDs anew for every function: with
// `plain` the database is a few lines, so that what is left is the reading of sysfs.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
	_ "unsafe" // for linkname

	"github.com/NVIDIA/go-nvlib/pkg/nvpci"
)

//go:linkname database github.com/NVIDIA/go-nvlib/pkg/pciids.defaultPCIdb
var database []byte

// silent keeps the library from writing a line for each function without an iommufd.
type silent struct{}

func (silent) Warningf(string, ...any) {}

func main() {
	passes, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	if len(os.Args) > 3 {
		database = []byte("10de  NVIDIA Corporation\n\t26b9  AD102GL [L40S]\nC 03  Display controller\n\t02  3D controller\n")
	}
	root := filepath.Join(os.Args[1], "bus/pci/devices")
	library := nvpci.New(nvpci.WithPCIDevicesRoot(root), nvpci.WithLogger(silent{}))
	for pass := range passes {
		began := time.Now()
		gpus, err := library.GetGPUs()
		if err != nil {
			panic(err)
		}
		took := time.Since(began)
		if pass == 0 {
			fmt.Println(len(gpus))
		}
		fmt.Println(took.Microseconds())
	}
}
