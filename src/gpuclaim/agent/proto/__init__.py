"""Messages of kubelet's pod-resources API, generated from the .proto beside this (`make proto`)."""
