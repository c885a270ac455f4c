"""The node agent: reads sysfs and kubelet, resolves device IDs to functions, reports a GPUNode. It decides nothing."""
