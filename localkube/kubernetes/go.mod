// Only marks the module's root. Which Kubernetes is built is said by
// versions/<minor>.mod: go build -modfile=versions/1.37.mod (see README.md).
module gpuclaim.local/kubernetes

go 1.24
