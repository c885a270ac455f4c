// Command informer holds every GPUClaim and GPUNode of a cluster in client-go informers, as a controller in Go would,
// and prints a line of JSON once they are synced. It ends when its standard input does.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"log"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the apiserver")
	typed := flag.Bool("typed", false, "hold typed structs, not unstructured objects")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	config.QPS, config.Burst = 1000, 1000
	started := time.Now()
	var informers []cache.SharedIndexInformer
	if *typed {
		informers = typedInformers(config)
	} else {
		informers = unstructuredInformers(config)
	}
	ctx := context.Background()
	var synced []cache.InformerSynced
	for _, informer := range informers {
		go informer.Run(ctx.Done())
		synced = append(synced, informer.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		log.Fatal("not synced")
	}
	seconds := time.Since(started).Seconds()
	objects := 0
	for _, informer := range informers {
		objects += len(informer.GetStore().ListKeys())
	}
	// What the list left behind is given back at once, not over minutes: the figure is at its smallest.
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	line := map[string]any{"objects": objects, "seconds": seconds, "heapBytes": stats.HeapAlloc}
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		log.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(informers)
}

func unstructuredInformers(config *rest.Config) []cache.SharedIndexInformer {
	client := dynamic.NewForConfigOrDie(config)
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	var informers []cache.SharedIndexInformer
	for _, plural := range []string{"gpuclaims", "gpunodes"} {
		resource := schema.GroupVersionResource{Group: group, Version: version, Resource: plural}
		informers = append(informers, factory.ForResource(resource).Informer())
	}
	return informers
}
