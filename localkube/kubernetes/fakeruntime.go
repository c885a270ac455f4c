package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cri-client/pkg/fake"
)

// imageSize is what every image is said to measure, in bytes: kubelet takes an
// image of size 0 for a broken one and leaves the container in ImageInspectError.
const imageSize = 1 << 20

// runFakeRuntime serves Kubernetes' own fake of the CRI on a unix socket until
// it is told to stop. Its containers run at once and run no code.
func runFakeRuntime() int {
	listen := flag.String("listen", "", "where to serve, as unix:///path")
	flag.Parse()
	if *listen == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: fake-runtime --listen unix:///path")
		return 2
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)

	runtime := fake.NewFakeRemoteRuntime()
	runtime.ImageService.SetFakeImageSize(imageSize)
	if err := runtime.Start(*listen); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	<-stop
	runtime.Stop()
	return 0
}
