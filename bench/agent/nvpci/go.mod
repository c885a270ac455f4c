module gpuclaim/bench/nvpci

go 1.26.0

require github.com/NVIDIA/go-nvlib v0.13.0
