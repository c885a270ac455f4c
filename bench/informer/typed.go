package main

import (
	"log"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

const (
	group   = "gpu.cozystack.io"
	version = "v1alpha1"
)

// GPUClaim has the fields that a bound claim has.
type GPUClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ClassName string `json:"className"`
		Count     int    `json:"count"`
		Set       string `json:"set,omitempty"`
	} `json:"spec"`
	Status struct {
		NodeName   string             `json:"nodeName,omitempty"`
		HeldSince  *metav1.Time       `json:"heldSince,omitempty"`
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status"`
}

// GPUClaimList is a list of them.
type GPUClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []GPUClaim `json:"items"`
}

// ResourceCount is how many device-plugin devices of a resource a function serves.
type ResourceCount struct {
	Name        string `json:"name"`
	Allocatable int    `json:"allocatable"`
	Used        int    `json:"used"`
}

// Device is one function of a node.
type Device struct {
	Address    string          `json:"address"`
	VendorID   string          `json:"vendorID,omitempty"`
	DeviceID   string          `json:"deviceID,omitempty"`
	Model      string          `json:"model,omitempty"`
	Driver     string          `json:"driver,omitempty"`
	IOMMUGroup string          `json:"iommuGroup,omitempty"`
	NUMANode   *int            `json:"numaNode,omitempty"`
	Health     string          `json:"health"`
	Resources  []ResourceCount `json:"resources,omitempty"`
}

// GPUNode has the fields that an agent reports.
type GPUNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		Devices       []Device           `json:"devices,omitempty"`
		ResourceNames []string           `json:"resourceNames,omitempty"`
		BootID        string             `json:"bootID,omitempty"`
		ReportedAt    *metav1.Time       `json:"reportedAt,omitempty"`
		Conditions    []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status"`
}

// GPUNodeList is a list of them.
type GPUNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []GPUNode `json:"items"`
}

// The informer only reads: nothing here is ever changed, so a shallow copy will do.

func (in *GPUClaim) DeepCopyObject() runtime.Object     { out := *in; return &out }
func (in *GPUClaimList) DeepCopyObject() runtime.Object { out := *in; return &out }
func (in *GPUNode) DeepCopyObject() runtime.Object      { out := *in; return &out }
func (in *GPUNodeList) DeepCopyObject() runtime.Object  { out := *in; return &out }

func typedInformers(config *rest.Config) []cache.SharedIndexInformer {
	gv := schema.GroupVersion{Group: group, Version: version}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(gv, &GPUClaim{}, &GPUClaimList{}, &GPUNode{}, &GPUNodeList{})
	metav1.AddToGroupVersion(scheme, gv)
	typed := rest.CopyConfig(config)
	typed.GroupVersion = &gv
	typed.APIPath = "/apis"
	typed.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(typed)
	if err != nil {
		log.Fatal(err)
	}
	listen := func(plural string, of runtime.Object) cache.SharedIndexInformer {
		source := cache.NewListWatchFromClient(client, plural, metav1.NamespaceAll, fields.Everything())
		return cache.NewSharedIndexInformer(source, of, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	return []cache.SharedIndexInformer{listen("gpuclaims", &GPUClaim{}), listen("gpunodes", &GPUNode{})}
}
