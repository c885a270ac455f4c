// Modules whose CRDs the tests of the chart install: README.md.
module gpuclaim.local/crds

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.19.1
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
